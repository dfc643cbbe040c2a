"""Invites, and the keys that nodes bring with them: each invite lets one node bring one key, once and in time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books import enrolment as records
from aliquot.coordinator.core.books.access import FIRST_ADMIN, Token
from aliquot.coordinator.core.books.enrolment import (
    GENERATIONS_MAX,
    SALT_BYTES,
    AuthorityBegun,
    AuthorityRetired,
    AuthorityTrusted,
    Enrolled,
    Generation,
    Invite,
    InvitesForgotten,
    InviteUsed,
    NodeDisenrolled,
    NodeEnrolled,
    NodeInvited,
)
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.errors import (
    AuthorityInUse,
    AuthorityUnchanged,
    InvalidField,
    InviteElsewhere,
    InviteExpired,
    InviteUnknown,
    InviteUsedUp,
    NodeNotFound,
)
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due

_ASK_AGAIN = "ask an operator for another: `aliquot node invite {node}`"


def invite(known: Known, command: c.InviteNode, now_ms: int) -> Decision[Invite]:
    """Let a node bring a key."""
    wanted = command.invite
    if len(known.enrolment.invites) >= records.INVITES_MAX:
        raise InvalidField(
            "node",
            f"there are {records.INVITES_MAX} invites, which is the bound",
            hint="those that are over are dropped a day later",
        )
    if not 0 < command.ttl_ms <= records.INVITE_TTL_MAX_MS:
        raise InvalidField("ttl_ms", f"is 1 to {records.INVITE_TTL_MAX_MS} ms")
    made = replace(wanted, created_ms=now_ms, expires_ms=now_ms + command.ttl_ms)
    return Decision((NodeInvited(now_ms, made),), made)


def join(known: Known, command: c.JoinNode, now_ms: int) -> Decision[Enrolled]:
    """Enrol the key that a node brings. The invite is used up in the same step."""
    found = known.enrolment.invites.get(command.invite_id)
    if found is None or not hmac.compare_digest(found.sha256, command.invite_sha256):
        raise InviteUnknown(
            "there is no such invite in this pool, or it was over long ago",
            hint=_ASK_AGAIN.format(node=command.node_name),
        )
    if found.used_by:
        held = known.enrolment.enrolled.get(command.node_id)
        same = found.used_by == command.node_id and found.key_sha256 == command.key_sha256
        if same and held is not None and held.key_sha256 == command.key_sha256:
            return Decision((), held)  # its answer was lost
        raise InviteUsedUp(
            f"node {found.used_by} has joined with this invite already; each is good for one time",
            hint=_ASK_AGAIN.format(node=found.node)
            + (". If that was not you, somebody else has it: `aliquot node disenrol` first" if not same else ""),
        )
    if found.expires_ms <= now_ms:
        late_s = (now_ms - found.expires_ms) // 1000
        raise InviteExpired(
            f"this invite for {found.node} ended {late_s} s ago", hint=_ASK_AGAIN.format(node=found.node)
        )
    _check_invited(known, found, command)
    if command.node_id not in known.enrolment.enrolled and len(known.enrolment.enrolled) >= records.ENROLLED_MAX:
        raise InvalidField("node_id", f"{records.ENROLLED_MAX} nodes have joined, which is the bound")
    facts = (
        InviteUsed(now_ms, found.invite_id, command.node_id, command.key_sha256),
        NodeEnrolled(now_ms, command.node_id, command.key_sha256, found.by, command.node_name, known.enrolment.newest),
    )
    return Decision(
        facts,
        Enrolled(command.node_id, command.key_sha256, now_ms, found.by, command.node_name, known.enrolment.newest),
    )


def _check_invited(known: Known, found: Invite, command: c.JoinNode) -> None:
    """Whether this is the node that was invited. A name is free to choose, so one that is invited by its name must not
    take the id of a node that is known by another.
    """
    old, held = known.nodes.get(command.node_id), known.enrolment.enrolled.get(command.node_id)
    called = {command.node_name}
    if old is not None:
        called = {old.spec.name}
    elif held is not None and held.name:
        called = {held.name}
    if found.node == command.node_id or found.node in called:
        return
    raise InviteElsewhere(
        f"this invite is for {found.node}, not for {command.node_id} ({', '.join(sorted(called))})",
        hint=_ASK_AGAIN.format(node=command.node_id),
    )


def disenrol(known: Known, command: c.DisenrolNode, now_ms: int) -> Decision[None]:
    """Let a node's key count no more."""
    node_id = command.node_id
    if node_id in known.enrolment.enrolled:
        return Decision((NodeDisenrolled(now_ms, node_id),))
    if node_id in known.nodes:
        return NOTHING
    raise NodeNotFound(f"there is no node {node_id[:64]!r}", hint="`aliquot nodes` lists them")


def look_at_invite(known: Known, invite_id: str, now_ms: int) -> list[Fact]:
    """Drop one that was over long ago."""
    found = known.enrolment.invites.get(invite_id)
    if found is None or found.forgotten_ms > now_ms:
        return []
    return [InvitesForgotten(now_ms, (invite_id,))]


# --------------------
# The pool's own certificate authority, exchanged without a gap: a new generation is begun and trusted beside the
# old one, everybody takes it up, and then the old one is retired. Who takes it up says so, and that is a fact; so
# whoever leads knows who still trusts only the old one.


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


def behind(enrolled: Iterable[Enrolled], tokens: Iterable[Token], newest: int, now_ms: int) -> Iterator[Behind]:
    """Who has not said that it trusts the latest generation: nodes, then the holders of these tokens. The first
    administrator's don't count: who has one of those gets in by the coordinator's own socket.
    """
    for node in enrolled:
        if node.generation < newest:
            yield Behind(node.generation, node_id=node.node_id)
    for token in tokens:
        if token.generation < newest and token.principal != FIRST_ADMIN and not token.expired(now_ms):
            yield Behind(token.generation, token_id=token.token_id, principal=token.principal)


def rotate(known: Known, command: c.RotateAuthority, now_ms: int) -> Decision[int]:
    """Begin a generation. Returns its number."""
    books = known.enrolment
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


def retire(known: Known, command: c.RetireAuthority, now_ms: int) -> Decision[int]:
    """End the older of two generations. Returns the number of the one that is left."""
    books = known.enrolment
    both = trusted(books.generations)
    if len(both) < 2:
        raise AuthorityUnchanged(
            f"generation {books.newest} of the pool's authority is the only one that is trusted",
            hint="`aliquot access authority rotate` begins the next",
        )
    tokens = known.access.tokens.values() if command.callers else ()
    left = list(behind(books.enrolled.values(), tokens, books.newest, now_ms)) if not command.force else []
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


def note_trust(known: Known, command: c.NoteTrust, now_ms: int) -> Decision[None]:
    """Put down what somebody says that it trusts. Who is not known any more, or says nothing new, changes nothing."""
    books = known.enrolment
    if not 0 < command.number <= books.newest:
        return NOTHING
    node, token = books.enrolled.get(command.node_id), known.access.tokens.get(command.token_id)
    node_id = node.node_id if node is not None and node.generation != command.number else ""
    token_id = token.token_id if token is not None and token.generation != command.number else ""
    if not node_id and not token_id:
        return NOTHING
    return Decision((AuthorityTrusted(now_ms, command.number, node_id, token_id),))


DECIDES = Decides(
    commands=by_kind(invite, join, disenrol, rotate, retire, note_trust), due={Due.INVITE: look_at_invite}
)
