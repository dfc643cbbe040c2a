"""Which coordinator may write: one protocol from a single process to an elected leader."""
