"""The processes of leases: how they are tracked, attributed, signalled and ended."""
