"""What is known of callers: principals with their grants, tokens, and the record of what they changed."""

from __future__ import annotations

import heapq
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from aliquot.common import limits
from aliquot.coordinator.core.books.roles import Grant
from aliquot.coordinator.core.values.fact import Fact

# --------------------
# The record of who did what: bounded, so that one who does very much pushes out their own acts. When it is full,
# who has more than a twentieth of it loses their oldest act for each that is put down. For others, the oldest goes
# of the tenant that has most, of whoever acts there, since a tenant's manager makes as many principals as it likes;
# who acts for the whole pool counts alone. Of those with equally many, it goes of who has the oldest.


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """Somebody changed something."""

    number: int
    at_ms: int
    principal: str
    token_id: str
    peer: str
    action: str
    subject: str
    account: str = ""
    """The tenant that it counts to, at the top of what the principal may do; empty: to the principal alone."""


class _Numbers:
    """Numbers of entries, in order, of which some may be gone by now."""

    __slots__ = ("count", "queue")

    def __init__(self) -> None:
        self.count = 0
        self.queue: deque[int] = deque()


class AuditRecord:
    """See the module's docstring. What is kept follows from what was put down, in its order."""

    def __init__(self, entries_max: int) -> None:
        self._max = entries_max
        self._share = entries_max // 20
        self._entries: dict[int, AuditEntry] = {}
        """By number, in order."""
        self._of: dict[str, _Numbers] = {}
        """By principal."""
        self._to: dict[tuple[str, str], _Numbers] = {}
        """By who they count to: an account, or else a principal."""
        self._most: list[tuple[int, int, tuple[str, str]]] = []
        """A heap of (number of entries below zero, the first of them, to whom), with what was true before."""

    def append(self, entry: AuditEntry) -> None:
        """Put down one more."""
        self._entries[entry.number] = entry
        own, to = self._of.setdefault(entry.principal, _Numbers()), self._to.setdefault(_to(entry), _Numbers())
        for numbers in (own, to):
            numbers.count += 1
            numbers.queue.append(entry.number)
        self._note(_to(entry))
        if len(self._entries) > self._max:
            self._drop(self._first(own if own.count > self._share else self._whose()))

    def extend(self, entries: Iterable[AuditEntry]) -> None:
        """Put down several."""
        for entry in entries:
            self.append(entry)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._of.clear()
        self._to.clear()
        self._most.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AuditEntry]:
        return iter(self._entries.values())

    def __reversed__(self) -> Iterator[AuditEntry]:
        return reversed(self._entries.values())

    def _first(self, numbers: _Numbers) -> int:
        queue = numbers.queue
        if len(queue) > 2 * numbers.count + 64:  # most are gone, behind one that is not
            queue = numbers.queue = deque(number for number in queue if number in self._entries)
        while queue[0] not in self._entries:
            queue.popleft()
        return queue[0]

    def _note(self, whose: tuple[str, str]) -> None:
        numbers = self._to[whose]
        heapq.heappush(self._most, (-numbers.count, self._first(numbers), whose))
        if len(self._most) > 2 * len(self._to) + 8:  # more than half of it is true no more
            self._most = [(-numbers.count, self._first(numbers), each) for each, numbers in self._to.items()]
            heapq.heapify(self._most)

    def _whose(self) -> _Numbers:
        """Those of who has most."""
        while True:
            count, first, whose = heapq.heappop(self._most)
            numbers = self._to.get(whose)
            if numbers is not None and (-numbers.count, self._first(numbers)) == (count, first):
                return numbers

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        own, to = self._of[entry.principal], self._to[_to(entry)]
        own.count -= 1
        to.count -= 1
        if not own.count:
            del self._of[entry.principal]
        if to.count:
            self._note(_to(entry))
        else:
            del self._to[_to(entry)]


def _to(entry: AuditEntry) -> tuple[str, str]:
    return (entry.account, "" if entry.account else entry.principal)


PRINCIPAL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@/+-]*[A-Za-z0-9])?")
"""People, services and what an identity provider calls them: ann, ann@example.com, ci/nightly. A colon never: what
speaks for a lease, a node or the pool itself has a name with one (`lease:l-…`), which nobody can be given."""
PRINCIPALS_MAX = 100_000
TOKENS_MAX = 200_000
TOKENS_PER_PRINCIPAL_MAX = 100
"""Made by itself, and as many made by others."""
SHARE = 4
"""Of principals and tokens in all, those of one account may be this many times as many as there is room left for."""
GRANTS_PER_PRINCIPAL_MAX = 100
"""Of one account: who gives roles on one tenant leaves room for those of others."""
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
    source: str = ""
    """The session that it was made by, however indirectly, and ends with."""
    giver: str = ""
    """Who else has seen it, or one that it was made by, however indirectly: who makes a token for another may keep it.
    """

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


def account(grants: Iterable[Grant]) -> str:
    """To whom it counts what somebody with these roles takes up: the tenant at the top of the first; empty: to the
    pool, whose administrators have let them in.
    """
    tops = [grant.scope.partition("/")[0] for grant in grants]
    return tops[0] if tops and all(tops) else ""


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
        self.principals_to: Counter[str] = Counter()
        self.tokens_to: Counter[str] = Counter()
        """How many count to an account (`account_of`)."""
        self._counted: dict[str, tuple[str, int]] = {}
        """By principal: to which account, and with how many tokens."""
        self.tokens_by: dict[str, dict[str, None]] = {}
        """Session -> the ids of tokens that end with it."""

    def grants_of(self, principal: str) -> tuple[Grant, ...]:
        """What a principal may do."""
        known = self.principals.get(principal)
        return known.grants if known is not None else ()

    def grants_of_token(self, token: Token) -> tuple[Grant, ...]:
        """What the holder of a token may do."""
        return self.grants_of(token.principal) + token.grants

    def account_of(self, principal: str) -> str:
        """See `account`."""
        return self._counted.get(principal, ("", 0))[0]

    def recount(self, principal: str) -> None:
        """After what it has, or may do, has changed: count it to whose it is now."""
        before = self._counted.pop(principal, None)
        if before is not None:
            self._count(*before, -1)
        if principal in self.principals:
            tokens = self.tokens_of.get(principal, {})
            grants = self.grants_of(principal) or tuple(grant for each in tokens for grant in self.tokens[each].grants)
            self._counted[principal] = (account(grants), len(tokens))
            self._count(*self._counted[principal], 1)

    def _count(self, to: str, tokens: int, sign: int) -> None:
        self.principals_to[to] += sign
        self.tokens_to[to] += sign * tokens


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
