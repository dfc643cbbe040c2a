"""What follows from commands, from the clock and from reports: decisions, by subject."""
