"""An identity provider that everybody trusts: what vouches for somebody says who it is and when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.common.clock import Clock
from aliquot.common.duties import Tell
from aliquot.coordinator.core.books.roles import Grant, Role
from aliquot.coordinator.errors import LoginRefused
from aliquot.coordinator.logins.config import OidcSettings, PodSettings, Vouched
from aliquot.coordinator.logins.logins import Logins
from aliquot.v1 import access_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

ISSUER = "oidc:login.example"


def voucher(name: str, roles: Iterable[tuple[int, str]], expires_ms: int) -> str:
    """What the provider gives somebody, with the roles that the pool's rules make of it."""
    return " ".join([name, str(expires_ms), *(f"{role}:{scope}" for role, scope in roles)])


def read_voucher(text: str) -> tuple[str, int, tuple[tuple[int, str], ...]]:
    """Whose it is, when it ends, and the roles."""
    name, expires_ms, *roles = text.split(" ")
    pairs = (role.partition(":") for role in roles)
    return name, int(expires_ms), tuple((int(role), scope) for role, _, scope in pairs)


class SimLogins(Logins):
    """Takes the provider's word, and nobody else's."""

    def __init__(self, oidc: OidcSettings, pods: PodSettings, clock: Clock, tell: Tell) -> None:
        super().__init__(oidc, pods, clock, tell)
        self._clock = clock

    async def vouch(self, request: access_pb2.LoginRequest) -> Vouched:
        """See `Logins.vouch`."""
        name, expires_ms, roles = read_voucher(request.id_token)
        if expires_ms <= self._clock.now_ms():
            raise LoginRefused("the ID token has expired")
        return Vouched(ISSUER, name, tuple(Grant(Role(role), scope) for role, scope in roles), expires_ms)
