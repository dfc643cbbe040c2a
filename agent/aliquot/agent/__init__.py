"""The agent: one per node; reads its devices, holds reservations on disk, and enforces what leases grant."""
