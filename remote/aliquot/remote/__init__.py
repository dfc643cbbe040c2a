"""Remote GPUs: programs on a machine without a GPU run their work on a leased part of one (docs/remote.md)."""
