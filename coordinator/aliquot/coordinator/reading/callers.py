"""The durable principals and tokens that callers are known by, and what was put down of who did what.

It follows the State's books group by group, so that nobody is let in, or kept out, by what a crash could take back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from aliquot.coordinator.core.books.access import AUDIT_MAX, AuditRecord, Principal, Token
from aliquot.coordinator.core.books.roles import Grant
from aliquot.coordinator.writing.commits import BooksChange

Record = TypeVar("Record")


class DurableCallers:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.principals: dict[str, Principal] = {}
        self.tokens: dict[str, Token] = {}
        """By id."""
        self.audit = AuditRecord(AUDIT_MAX)
        self.changed: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        """The principals, and the ids of tokens, that the latest group has changed."""
        self._tokens_of: dict[str, dict[str, Token]] = {}
        """By principal, then by id; none of them empty."""

    def apply(self, change: BooksChange) -> None:
        """Include a durable group."""
        callers = change.callers
        if callers is None:
            self.changed = frozenset(), frozenset()
            return
        principals, tokens = {name for name, _ in callers.principals}, {token_id for token_id, _ in callers.tokens}
        if change.all_callers:
            principals |= self.principals.keys()
            tokens |= self.tokens.keys()
            self.principals.clear()
            self.tokens.clear()
            self._tokens_of.clear()
            self.audit.clear()
        for name, principal in callers.principals:
            put(self.principals, name, principal)
        for token_id, token in callers.tokens:
            self._enlist(token_id, token)
            put(self.tokens, token_id, token)
        self.audit.extend(callers.audit)
        self.changed = frozenset(principals), frozenset(tokens)

    def grants_of(self, principal: str) -> tuple[Grant, ...]:
        """What a principal may do, whatever its token adds."""
        known = self.principals.get(principal)
        return known.grants if known is not None else ()

    def grants_with_sessions(self, principal: str) -> tuple[Grant, ...]:
        """What a principal may do, and what its tokens add."""
        return self.grants_of(principal) + tuple(grant for token in self.tokens_of(principal) for grant in token.grants)

    def tokens_of(self, principal: str) -> Collection[Token]:
        """The tokens of a principal."""
        return self._tokens_of.get(principal, {}).values()

    def _enlist(self, token_id: str, token: Token | None) -> None:
        old = self.tokens.get(token_id)
        if old is not None:
            del self._tokens_of[old.principal][token_id]
            if not self._tokens_of[old.principal]:
                del self._tokens_of[old.principal]
        if token is not None:
            self._tokens_of.setdefault(token.principal, {})[token_id] = token


def put(records: dict[str, Record], key: str, record: Record | None) -> None:
    """Take a record; None: there is none any more."""
    if record is None:
        records.pop(key, None)
    else:
        records[key] = record
