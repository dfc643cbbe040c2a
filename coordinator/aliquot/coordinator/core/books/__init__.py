"""What the coordinator knows: records, facts, and what follows from records alone, by subject."""
