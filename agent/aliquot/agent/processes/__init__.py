"""Processes of this node: whose they are, and signals to them."""
