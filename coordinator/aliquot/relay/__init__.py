"""Relays: many agents' sessions over few streams to the coordinator. See docs/decisions for why and how."""
