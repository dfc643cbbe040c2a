"""Demand by the hour: what was held and what waited, of the whole, of each pool, model and tenant."""
