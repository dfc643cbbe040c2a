"""What was used, by whom, and what it costs: double entry, integers, append-only."""
