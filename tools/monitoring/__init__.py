"""Dashboards and rules as code: `python -m tools.monitoring` writes what is in deploy/monitoring."""
