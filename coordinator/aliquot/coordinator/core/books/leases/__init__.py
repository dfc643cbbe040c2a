"""Leases: their records, how they are granted, end and fail, and who holds what because of them."""
