"""The tiers of enforcement: one module for each."""
