"""What is known of callers: principals with their grants, tokens, and the record of what they changed."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from aliquot.common import limits
from aliquot.coordinator.core.access.audit import AuditRecord
from aliquot.coordinator.core.access.roles import Grant

PRINCIPAL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@/+-]*[A-Za-z0-9])?")
"""People, services and what an identity provider calls them: ann, ann@example.com, ci/nightly. A colon never: what
speaks for a lease, a node or the pool itself has a name with one (`lease:l-…`), which nobody can be given."""
PRINCIPALS_MAX = 100_000
TOKENS_MAX = 200_000
TOKENS_PER_PRINCIPAL_MAX = 100
GRANTS_PER_PRINCIPAL_MAX = 100
AUDIT_MAX = 20_000
"""Entries that are kept; who has most of them loses its oldest first."""
NOTE_CHARS_MAX = limits.MAX_NAME_CHARS
SESSION_MS_MAX = 12 * 3_600_000
SESSIONS_PER_PRINCIPAL_MAX = 10
"""Of one principal's sessions; the oldest goes."""
EXPIRED_KEPT_MS = 7 * 86_400_000
FIRST_ADMIN = "admin"
"""The principal of the first start, and of the coordinator's own socket."""
VOUCHERS: Final = ("oidc:", "kubernetes:")
"""How those begin who vouch for principals: `oidc:login.example.com`. They open sessions and do nothing else."""
PODS = "sa/"
"""How principals begin that Kubernetes vouches for: `sa/NAMESPACE/ACCOUNT`. Nobody else can vouch for one."""
SYSTEM = "pool:self"
"""Who does what nobody asked for: the first start, and whoever gets into the coordinator's own socket."""


class Principal(msgspec.Struct, frozen=True):
    """A person or a service, with what it may do."""

    name: str
    grants: tuple[Grant, ...] = ()


class Token(msgspec.Struct, frozen=True):
    """What is kept of a token: never its text."""

    token_id: str
    sha256: bytes
    principal: str
    created_ms: int
    expires_ms: int = 0
    """0: it does not expire."""
    note: str = ""
    issued_by: str = ""
    grants: tuple[Grant, ...] = ()
    """What the token allows beside its principal's grants: of a session, what the identity provider vouched for."""
    generation: int = 1
    """The latest of the pool's authority that its holder trusts, as far as it has said so."""

    @property
    def session(self) -> bool:
        """Whether an identity provider has vouched for its holder."""
        return self.issued_by.startswith(VOUCHERS)

    @property
    def forget_ms(self) -> int:
        """When it may be forgotten: until then its holder is told that it has expired."""
        return self.expires_ms + EXPIRED_KEPT_MS

    def expired(self, now_ms: int) -> bool:
        """Whether its time is over."""
        return 0 < self.expires_ms <= now_ms


class Actor(msgspec.Struct, frozen=True):
    """Who asks for a change, as the record will have it."""

    principal: str
    token_id: str = ""
    peer: str = ""
    action: str = ""
    """The method's name, such as Cordon."""


class AccessBooks:
    """Everything durable about callers."""

    def __init__(self) -> None:
        self.principals: dict[str, Principal] = {}
        self.tokens: dict[str, Token] = {}
        """By id."""
        self.audit = AuditRecord(AUDIT_MAX)
        self.next_entry = 1

        # derived
        self.tokens_of: dict[str, dict[str, None]] = {}
        """Principal -> the ids of its tokens."""

    def grants_of(self, principal: str) -> tuple[Grant, ...]:
        """What a principal may do."""
        known = self.principals.get(principal)
        return known.grants if known is not None else ()

    def grants_of_token(self, token: Token) -> tuple[Grant, ...]:
        """What the holder of a token may do."""
        return self.grants_of(token.principal) + token.grants
