"""The tree of tenants, which is in their names: `research` is above `research/vision`."""

from __future__ import annotations

from collections.abc import Iterator


def upwards(tenant: str) -> Iterator[str]:
    """A tenant, then those above it."""
    yield tenant
    while "/" in tenant:
        tenant = tenant.rpartition("/")[0]
        yield tenant
