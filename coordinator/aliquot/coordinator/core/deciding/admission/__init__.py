"""Waiting requests: the pass along the lines, room made for the entitled, and why others wait."""
