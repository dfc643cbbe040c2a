"""Simulated cards of vendors other than NVIDIA: libraries in the place of theirs, and the machines that those show."""
