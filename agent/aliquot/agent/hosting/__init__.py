"""Processes that the agent runs for leases which are served rather than attached to (docs/decisions/0021)."""
