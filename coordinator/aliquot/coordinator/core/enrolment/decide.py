"""Invites, and the keys that nodes bring with them: each invite lets one node bring one key, once and in time."""

from __future__ import annotations

import hmac

from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.enrolment import records
from aliquot.coordinator.core.enrolment.facts import (
    InvitesForgotten,
    InviteUsed,
    NodeDisenrolled,
    NodeEnrolled,
    NodeInvited,
)
from aliquot.coordinator.core.enrolment.records import Enrolled, Invite
from aliquot.coordinator.core.errors import (
    InvalidField,
    InviteElsewhere,
    InviteExpired,
    InviteUnknown,
    InviteUsedUp,
    NodeNotFound,
)
from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.outcomes import NOTHING, Decision
from aliquot.coordinator.core.planning import Planning

_ASK_AGAIN = "ask an operator for another: `aliquot node invite {node}`"


def invite(state: Planning, command: c.InviteNode, now_ms: int) -> Decision[Invite]:
    """Let a node bring a key."""
    wanted = command.invite
    if len(state.enrolment.invites) >= records.INVITES_MAX:
        raise InvalidField(
            "node",
            f"there are {records.INVITES_MAX} invites, which is the bound",
            hint="those that are over are dropped a day later",
        )
    if not 0 < command.ttl_ms <= records.INVITE_TTL_MAX_MS:
        raise InvalidField("ttl_ms", f"is 1 to {records.INVITE_TTL_MAX_MS} ms")
    made = replace(wanted, created_ms=now_ms, expires_ms=now_ms + command.ttl_ms)
    return Decision((NodeInvited(now_ms, made),), made)


def join(state: Planning, command: c.JoinNode, now_ms: int) -> Decision[Enrolled]:
    """Enrol the key that a node brings. The invite is used up in the same step."""
    found = state.enrolment.invites.get(command.invite_id)
    if found is None or not hmac.compare_digest(found.sha256, command.invite_sha256):
        raise InviteUnknown(
            "there is no such invite in this pool, or it was over long ago",
            hint=_ASK_AGAIN.format(node=command.node_name),
        )
    if found.used_by:
        held = state.enrolment.enrolled.get(command.node_id)
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
    _check_invited(state, found, command)
    if command.node_id not in state.enrolment.enrolled and len(state.enrolment.enrolled) >= records.ENROLLED_MAX:
        raise InvalidField("node_id", f"{records.ENROLLED_MAX} nodes have joined, which is the bound")
    facts = (
        InviteUsed(now_ms, found.invite_id, command.node_id, command.key_sha256),
        NodeEnrolled(now_ms, command.node_id, command.key_sha256, found.by, command.node_name, state.enrolment.newest),
    )
    return Decision(
        facts,
        Enrolled(command.node_id, command.key_sha256, now_ms, found.by, command.node_name, state.enrolment.newest),
    )


def _check_invited(state: Planning, found: Invite, command: c.JoinNode) -> None:
    """Whether this is the node that was invited. A name is free to choose, so one that is invited by its name must not
    take the id of a node that is known by another.
    """
    known, held = state.nodes.get(command.node_id), state.enrolment.enrolled.get(command.node_id)
    called = {command.node_name}
    if known is not None:
        called = {known.spec.name}
    elif held is not None and held.name:
        called = {held.name}
    if found.node == command.node_id or found.node in called:
        return
    raise InviteElsewhere(
        f"this invite is for {found.node}, not for {command.node_id} ({', '.join(sorted(called))})",
        hint=_ASK_AGAIN.format(node=command.node_id),
    )


def disenrol(state: Planning, command: c.DisenrolNode, now_ms: int) -> Decision[None]:
    """Let a node's key count no more."""
    node_id = command.node_id
    if node_id in state.enrolment.enrolled:
        return Decision((NodeDisenrolled(now_ms, node_id),))
    if node_id in state.nodes:
        return NOTHING
    raise NodeNotFound(f"there is no node {node_id[:64]!r}", hint="`aliquot nodes` lists them")


def look_at_invite(state: Planning, invite_id: str, now_ms: int) -> list[Fact]:
    """Drop one that was over long ago."""
    found = state.enrolment.invites.get(invite_id)
    if found is None or found.forgotten_ms > now_ms:
        return []
    return [InvitesForgotten(now_ms, (invite_id,))]
