"""The C part, and where to find it: the preload library."""
