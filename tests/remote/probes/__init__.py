"""What users of PyTorch do, each as a small program that says by itself whether it worked."""
