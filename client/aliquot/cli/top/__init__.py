"""The live screen: what is asked of the pool and its agents (`snapshot`), and how it is drawn (`screen`)."""
