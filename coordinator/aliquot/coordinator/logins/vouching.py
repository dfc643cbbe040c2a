"""What somebody who vouches for callers says of one."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.coordinator.core.books.roles import Grant


@dataclass(frozen=True, slots=True)
class Vouched:
    """A caller, as others know it."""

    by: str
    """Who vouches, as the record will have it: `oidc:login.example.com`."""
    principal: str
    grants: tuple[Grant, ...]
    expires_ms: int
    """When the voucher ends, and so the session at the latest."""
