"""The serving end of a lease: runs what a client says, on the lease's device, within its memory."""
