"""The SDK: ask for parts of GPUs from a Python program and hold them while it runs."""
