"""Nodes that one project lends to another: when, which, and what goes with them."""
