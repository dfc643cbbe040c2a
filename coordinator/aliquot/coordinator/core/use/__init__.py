"""What leases do with what they hold: activity, idleness, what follows from it, and what is lent meanwhile."""
