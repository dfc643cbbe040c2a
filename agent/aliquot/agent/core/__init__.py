"""Pure agent logic: reservations, desired against actual state, and enforcement decisions, with no I/O."""
