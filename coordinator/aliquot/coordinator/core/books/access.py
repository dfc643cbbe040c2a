"""What is known of callers: principals with their grants, tokens, and the record of what they changed."""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from aliquot.common import limits
from aliquot.coordinator.core.books.roles import Grant
from aliquot.coordinator.core.values.fact import Fact

# --------------------
# The record of who did what: bounded, so that one who does very much pushes out their own acts. When it is full,
# who has more than a twentieth of it loses their oldest act for each that is put down. For others, the oldest goes
# of who has most; of those with equally many, of who has the oldest.


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """Somebody changed something."""

    number: int
    at_ms: int
    principal: str
    token_id: str
    peer: str
    action: str
    subject: str


class AuditRecord:
    """See the module's docstring. What is kept follows from what was put down, in its order."""

    def __init__(self, entries_max: int) -> None:
        self._max = entries_max
        self._share = entries_max // 20
        self._entries: dict[int, AuditEntry] = {}
        """By number, in order."""
        self._of: dict[str, deque[int]] = {}
        """Principal -> the numbers of its entries."""
        self._most: list[tuple[int, int, str]] = []
        """A heap of (number of entries below zero, the first of them, principal), with what was true before."""

    def append(self, entry: AuditEntry) -> None:
        """Put down one more."""
        self._entries[entry.number] = entry
        self._of.setdefault(entry.principal, deque()).append(entry.number)
        self._note(entry.principal)
        if len(self._entries) > self._max:
            own = len(self._of[entry.principal]) > self._share
            self._drop(entry.principal if own else self._whose())

    def extend(self, entries: Iterable[AuditEntry]) -> None:
        """Put down several."""
        for entry in entries:
            self.append(entry)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._of.clear()
        self._most.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AuditEntry]:
        return iter(self._entries.values())

    def __reversed__(self) -> Iterator[AuditEntry]:
        return reversed(self._entries.values())

    def _note(self, principal: str) -> None:
        numbers = self._of[principal]
        heapq.heappush(self._most, (-len(numbers), numbers[0], principal))
        if len(self._most) > 2 * (len(self._of) + self._max):
            self._most = [(-len(numbers), numbers[0], name) for name, numbers in self._of.items()]
            heapq.heapify(self._most)

    def _whose(self) -> str:
        """Who has most."""
        while True:
            count, first, principal = heapq.heappop(self._most)
            numbers = self._of.get(principal)
            if numbers is not None and (-len(numbers), numbers[0]) == (count, first):
                return principal

    def _drop(self, principal: str) -> None:
        """The oldest entry of somebody."""
        numbers = self._of[principal]
        del self._entries[numbers.popleft()]
        if numbers:
            self._note(principal)
        else:
            del self._of[principal]


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


# --------------------
# What has happened to principals and tokens, and who did what.


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
