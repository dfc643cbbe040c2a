"""Who may what, and when: what was durably decided about roles, tokens and keys, and a table of the auditor's own.

A change counts in two steps. When it is durable, a coordinator may go by it; once it has been answered, or two records
have followed it, the one that leads surely does. Between the two either is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FAR = 1 << 62
VIEWER, USER, MANAGER, OPERATOR, ADMIN, CONSOLE, WORKLOAD = 1, 2, 3, 4, 5, 9, 100
READ = frozenset({VIEWER, USER, MANAGER, OPERATOR, ADMIN, CONSOLE})
LOOK = READ | {WORKLOAD}
ASK = frozenset({USER, MANAGER, ADMIN})
KEEP_OTHERS = frozenset({MANAGER, ADMIN})
END_OTHERS = frozenset({MANAGER, OPERATOR, ADMIN})
OPERATE = frozenset({OPERATOR, ADMIN})
OFFICE = frozenset({ADMIN})
ITSELF = frozenset({WORKLOAD})
BY_MANAGERS = frozenset({VIEWER, USER, MANAGER})
Need = tuple[frozenset[int], str | None]
"""Roles of which one is needed, and where: on a tenant, on the whole pool (empty), or anywhere (None)."""


@dataclass(slots=True, eq=False)
class Held:
    """A role, a token or a key from when to when. All times are of the simulated world."""

    principal: str
    role: int = 0
    scope: str = ""
    from_us: int = 0
    known_us: int = FAR
    """Since then the leader surely goes by it."""
    until_us: int = FAR
    gone_us: int = FAR
    """Since then the leader surely goes by its end."""
    sha256: bytes = b""
    expires_ms: int = 0
    session: tuple[tuple[int, str], ...] = ()
    """Roles that come with a token, and end with it."""

    def possibly(self, begin_us: int, end_us: int) -> bool:
        """Whether it may have counted at some moment between these."""
        return self.from_us <= end_us and self.gone_us >= begin_us

    def surely(self, begin_us: int, end_us: int) -> bool:
        """Whether it counted all the time."""
        return self.known_us <= begin_us and self.until_us > end_us


def covers(scope: str, tenant: str) -> bool:
    """Whether a tenant is in a scope."""
    return scope in ("", tenant) or tenant.startswith(scope + "/")


class Roles:
    """Everything durable about principals."""

    def __init__(self) -> None:
        self.grants: dict[str, list[Held]] = {}
        """By principal."""
        self.tokens: dict[str, Held] = {}
        """By id."""
        self._records = 0
        self._pending: list[tuple[int, Held]] = []
        """(number of its record, what began or ended there), not surely gone by yet."""

    def record(self, now_us: int) -> list[Held]:
        """One more record is durable. Returns what has surely ended by that."""
        self._records += 1
        return self._settle(self._records - 2, now_us)

    def all_known(self, now_us: int) -> None:
        """A coordinator leads, which has read all of it."""
        self._settle(self._records, now_us)

    def _settle(self, up_to: int, now_us: int) -> list[Held]:
        known = [held for number, held in self._pending if number <= up_to]
        self._pending = [entry for entry in self._pending if entry[0] > up_to]
        return [held for held in known if self.know(held, now_us)]

    def know(self, held: Held, now_us: int) -> bool:
        """The leader surely goes by this as it is. Returns whether it has ended by that."""
        if held.until_us != FAR:
            ends = held.gone_us == FAR
            held.gone_us = min(held.gone_us, now_us)
            return ends
        held.known_us = min(held.known_us, now_us)
        return False

    def begin(self, held: Held) -> Held:
        """It counts from now on."""
        self._pending.append((self._records, held))
        return held

    def end(self, held: Held, now_us: int) -> None:
        """It counts no more."""
        held.until_us = now_us
        self._pending.append((self._records, held))

    def grant(self, principal: str, role: int, scope: str, now_us: int) -> Held:
        """A role is given."""
        held = self.begin(Held(principal, role, scope, now_us))
        self.grants.setdefault(principal, []).append(held)
        return held

    def latest(self, principal: str, role: int, scope: str) -> Held | None:
        """A role as it was given last."""
        for held in reversed(self.grants.get(principal, ())):
            if (held.role, held.scope) == (role, scope):
                return held
        return None

    def may(
        self,
        principal: str,
        needs: Iterable[Need],
        begin_us: int,
        end_us: int,
        *,
        surely: bool,
        session: Iterable[tuple[int, str]] = (),
    ) -> bool:
        """Whether a principal has one of these at some moment between (`surely`: all the time), by itself or by the
        session that it shows.
        """
        needs = list(needs)
        for role, scope in session:
            if any(role in roles and (where is None or covers(scope, where)) for roles, where in needs):
                return True
        for held in self.grants.get(principal, ()):
            if held.surely(begin_us, end_us) if surely else held.possibly(begin_us, end_us):
                for roles, where in needs:
                    if held.role in roles and (where is None or covers(held.scope, where)):
                        return True
        return False

    def out_of_reach(
        self, principal: str, of: str, begin_us: int, end_us: int, session: Iterable[tuple[int, str]] = ()
    ) -> bool:
        """Whether somebody who is no administrator can't give or end what that one has."""
        if self.may(principal, [(OFFICE, "")], begin_us, end_us, surely=False):
            return False
        return any(
            held.surely(begin_us, end_us)
            and not (
                held.scope
                and held.role in BY_MANAGERS
                and self.may(principal, [(KEEP_OTHERS, held.scope)], begin_us, end_us, surely=False, session=session)
            )
            for held in self.grants.get(of, ())
        )
