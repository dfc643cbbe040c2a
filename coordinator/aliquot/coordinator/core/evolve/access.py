"""How facts about callers change the State."""

from __future__ import annotations

from aliquot.coordinator.core.books.access import (
    AccessBooks,
    Acted,
    AuditEntry,
    Principal,
    RoleGranted,
    RoleRevoked,
    Token,
    TokenIssued,
    TokensEnded,
)
from aliquot.coordinator.core.evolve import saving
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due


def _granted(state: State, fact: RoleGranted) -> None:
    books = state.access
    grants = books.grants_of(fact.principal)
    books.principals[fact.principal] = Principal(fact.principal, tuple(sorted({*grants, fact.grant})))
    books.recount(fact.principal)
    state.touched.principals[fact.principal] = None


def _revoked(state: State, fact: RoleRevoked) -> None:
    books = state.access
    left = tuple(grant for grant in books.grants_of(fact.principal) if grant != fact.grant)
    books.principals[fact.principal] = Principal(fact.principal, left)
    _forget(books, fact.principal)
    state.touched.principals[fact.principal] = None


def _issued(state: State, fact: TokenIssued) -> None:
    token = fact.token
    books = state.access
    books.tokens[token.token_id] = token
    _enlist(books, token)
    books.principals.setdefault(token.principal, Principal(token.principal))
    books.recount(token.principal)
    if token.expires_ms:
        state.timers.add(token.forget_ms, Due.TOKEN, token.token_id)
    state.touched.tokens[token.token_id] = None
    state.touched.principals[token.principal] = None


def _ended(state: State, fact: TokensEnded) -> None:
    books = state.access
    for token_id in fact.token_ids:
        token = books.tokens.pop(token_id)
        if token.expires_ms:
            state.timers.drop(token.forget_ms, Due.TOKEN, token_id)
        of_principal = books.tokens_of[token.principal]
        del of_principal[token_id]
        if not of_principal:
            del books.tokens_of[token.principal]
        if token.source:
            of_session = books.tokens_by[token.source]
            del of_session[token_id]
            if not of_session:
                del books.tokens_by[token.source]
        _forget(books, token.principal)
        state.touched.tokens[token_id] = None
        state.touched.principals[token.principal] = None


def _acted(state: State, fact: Acted) -> None:
    books = state.access
    entry = AuditEntry(
        books.next_entry,
        fact.at_ms,
        fact.principal,
        fact.token_id,
        fact.peer,
        fact.action,
        fact.subject,
        books.account_of(fact.principal),
    )
    books.next_entry += 1
    books.audit.append(entry)
    state.touched.audit.append(entry)


def _enlist(books: AccessBooks, token: Token) -> None:
    books.tokens_of.setdefault(token.principal, {})[token.token_id] = None
    if token.source:
        books.tokens_by.setdefault(token.source, {})[token.token_id] = None


def _forget(books: AccessBooks, name: str) -> None:
    """A principal that has lost something, and may have nothing left to it."""
    if name in books.principals and not books.principals[name].grants and name not in books.tokens_of:
        del books.principals[name]
    books.recount(name)


def index(state: State) -> None:
    """Derive from the books what follows from them."""
    books = state.access
    books.tokens_of.clear()
    books.tokens_by.clear()
    for token in books.tokens.values():
        _enlist(books, token)
        if token.expires_ms:
            state.timers.add(token.forget_ms, Due.TOKEN, token.token_id)
    for name in books.principals:
        books.recount(name)


SUBJECT = Subject(
    name="access",
    apply=by_kind(_granted, _revoked, _issued, _ended, _acted),
    saves=(
        saving.records("principals", Principal, "access.principals", key="name"),
        saving.records("tokens", Token, "access.tokens", key="token_id"),
        saving.rows("audit", AuditEntry, "access.audit"),
        saving.value("next_audit", int, "access.next_entry", 1),
    ),
    index=index,
)
