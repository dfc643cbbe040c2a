"""Holds: capacity kept for a named waiting request until a stated time."""
