"""Elastic leases: how many members one may have, how it grows, and what it gives back for others."""
