"""Leases that go elsewhere: to make room for a large request, to heal fragmentation, or before maintenance."""
