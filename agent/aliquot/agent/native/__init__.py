"""The preload library, in C."""
