"""Nodes that come when they are missed, and go when they are not: what is on offer, what is ordered, and why."""
