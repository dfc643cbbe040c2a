"""Whose leases end so that somebody else can start, and what is kept for whoever waits."""
