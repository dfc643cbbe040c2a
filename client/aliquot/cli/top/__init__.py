"""The live screen: gathers data from the pool and its agents (`snapshot`) and draws it (`screen`)."""
