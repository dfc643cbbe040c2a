"""Agents whose sessions come through a relay."""
