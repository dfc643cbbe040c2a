"""Enforcement tiers: one module per way of holding a slice to its limits."""
