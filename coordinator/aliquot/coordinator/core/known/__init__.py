"""What decisions are made with: the State read-only, settings, and a memory of earlier searches."""
