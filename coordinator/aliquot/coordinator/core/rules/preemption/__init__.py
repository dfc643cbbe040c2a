"""Whose leases end so that others can start, and what is kept for them."""
