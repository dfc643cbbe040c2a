"""The pool's own certificate authority, exchanged without a gap: a new generation is begun and trusted beside the old
one, everybody takes it up, and then the old one is retired.

Who takes it up says so, and that is a fact; so whoever leads knows who still trusts only the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.access.records import FIRST_ADMIN, Token
from aliquot.coordinator.core.enrolment.facts import AuthorityBegun, AuthorityRetired, AuthorityTrusted
from aliquot.coordinator.core.enrolment.records import GENERATIONS_MAX, SALT_BYTES, Generation
from aliquot.coordinator.core.enrolment.view import EnrolmentView
from aliquot.coordinator.core.errors import AuthorityInUse, AuthorityUnchanged, InvalidField
from aliquot.coordinator.core.outcomes import NOTHING, Decision
from aliquot.coordinator.core.planning import Planning

_NAMED_MAX = 5
"""Of those who still trust only the old one, in an error."""


@dataclass(frozen=True, slots=True)
class Behind:
    """Somebody who has not said that it trusts the latest generation: a node, or the holder of a token."""

    generation: int
    node_id: str = ""
    token_id: str = ""
    principal: str = ""

    def __str__(self) -> str:
        return f"node {self.node_id}" if self.node_id else f"{self.principal} (token {self.token_id})"


def trusted(generations: tuple[Generation, ...]) -> tuple[Generation, ...]:
    """Those that are to be trusted, the oldest first: it is the one that coordinators show."""
    return tuple(each for each in generations if not each.retired_ms)


def behind(books: EnrolmentView, tokens: Iterable[Token], now_ms: int) -> Iterator[Behind]:
    """Who has not said that it trusts the latest generation: nodes, then the holders of these tokens. The first
    administrator's don't count: who has one of those gets in by the coordinator's own socket.
    """
    newest = books.newest
    for node in books.enrolled.values():
        if node.generation < newest:
            yield Behind(node.generation, node_id=node.node_id)
    for token in tokens:
        if token.generation < newest and token.principal != FIRST_ADMIN and not token.expired(now_ms):
            yield Behind(token.generation, token_id=token.token_id, principal=token.principal)


def rotate(state: Planning, command: c.RotateAuthority, now_ms: int) -> Decision[int]:
    """Begin a generation. Returns its number."""
    books = state.enrolment
    if len(command.salt) != SALT_BYTES:
        raise InvalidField("salt", f"has {SALT_BYTES} bytes")
    if len(trusted(books.generations)) > 1:
        raise AuthorityUnchanged(
            f"generation {books.newest} of the pool's authority is being taken up already",
            hint="`aliquot access authority retire` ends the one before it, and then another can begin",
        )
    if len(books.generations) >= GENERATIONS_MAX:
        raise AuthorityUnchanged(f"there were {GENERATIONS_MAX} generations, which is the bound")
    number = books.newest + 1
    return Decision((AuthorityBegun(now_ms, Generation(number, command.salt, now_ms, command.by)),), number)


def retire(state: Planning, command: c.RetireAuthority, now_ms: int) -> Decision[int]:
    """End the older of two generations. Returns the number of the one that is left."""
    books = state.enrolment
    both = trusted(books.generations)
    if len(both) < 2:
        raise AuthorityUnchanged(
            f"generation {books.newest} of the pool's authority is the only one that is trusted",
            hint="`aliquot access authority rotate` begins the next",
        )
    tokens = state.access.tokens.values() if command.callers else ()
    left = list(behind(books, tokens, now_ms)) if not command.force else []
    if left:
        named = ", ".join(map(str, left[:_NAMED_MAX]))
        more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
        raise AuthorityInUse(
            f"{len(left)} still trust only generation {both[0].number} of the pool's authority, as far as is known: "
            f"{named}{more}",
            hint="`aliquot access authority ls` lists them. Agents, and who has logged in, take the next one up by "
            "themselves when they connect; --force goes on without the others",
        )
    return Decision((AuthorityRetired(now_ms, both[0].number),), books.newest)


def note_trust(state: Planning, command: c.NoteTrust, now_ms: int) -> Decision[None]:
    """Put down what somebody says that it trusts. Who is not known any more, or says nothing new, changes nothing."""
    books = state.enrolment
    if not 0 < command.number <= books.newest:
        return NOTHING
    node, token = books.enrolled.get(command.node_id), state.access.tokens.get(command.token_id)
    node_id = node.node_id if node is not None and node.generation != command.number else ""
    token_id = token.token_id if token is not None and token.generation != command.number else ""
    if not node_id and not token_id:
        return NOTHING
    return Decision((AuthorityTrusted(now_ms, command.number, node_id, token_id),))
