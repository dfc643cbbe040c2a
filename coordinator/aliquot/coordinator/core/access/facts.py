"""What has happened to principals and tokens, and who did what; see `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.access.records import Token
from aliquot.coordinator.core.access.roles import Grant
from aliquot.coordinator.core.fact import Fact


class RoleGranted(Fact, frozen=True, tag="role+"):
    """A principal was given a role on a scope; it exists from then on."""

    principal: str
    grant: Grant


class RoleRevoked(Fact, frozen=True, tag="role-"):
    """A role was taken away. A principal without roles and tokens is forgotten."""

    principal: str
    grant: Grant


class TokenIssued(Fact, frozen=True, tag="token+"):
    """A token counts from now on."""

    token: Token


class TokensEnded(Fact, frozen=True, tag="token-"):
    """These tokens count no more: revoked, or their time was over."""

    token_ids: tuple[str, ...]


class Acted(Fact, frozen=True, tag="acted"):
    """Somebody had the change made that the next facts describe."""

    principal: str
    token_id: str
    peer: str
    action: str
    subject: str
