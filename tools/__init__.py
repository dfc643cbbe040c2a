"""Scripts that write or check parts of this repository."""
