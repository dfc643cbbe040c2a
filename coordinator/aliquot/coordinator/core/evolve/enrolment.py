"""How facts about nodes' keys and the pool's authority change the State."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.books.enrolment import (
    FIRST_GENERATION,
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
from aliquot.coordinator.core.evolve import saving
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due


def _invited(state: State, fact: NodeInvited) -> None:
    invite = fact.invite
    state.enrolment.invites[invite.invite_id] = invite
    state.timers.add(invite.forgotten_ms, Due.INVITE, invite.invite_id)
    state.touched.invites[invite.invite_id] = None


def _used(state: State, fact: InviteUsed) -> None:
    invites = state.enrolment.invites
    invites[fact.invite_id] = replace(invites[fact.invite_id], used_by=fact.node_id, key_sha256=fact.key_sha256)
    state.touched.invites[fact.invite_id] = None


def _forgotten(state: State, fact: InvitesForgotten) -> None:
    for invite_id in fact.invite_ids:
        invite = state.enrolment.invites.pop(invite_id)
        state.timers.drop(invite.forgotten_ms, Due.INVITE, invite_id)
        state.touched.invites[invite_id] = None


def _enrolled(state: State, fact: NodeEnrolled) -> None:
    enrolled = Enrolled(fact.node_id, fact.key_sha256, fact.at_ms, fact.by, fact.name, fact.generation)
    state.enrolment.enrolled[fact.node_id] = enrolled
    state.touched.enrolled[fact.node_id] = None


def _disenrolled(state: State, fact: NodeDisenrolled) -> None:
    del state.enrolment.enrolled[fact.node_id]
    state.touched.enrolled[fact.node_id] = None


def _begun(state: State, fact: AuthorityBegun) -> None:
    state.enrolment.generations += (fact.generation,)
    state.touched.authority = True


def _retired(state: State, fact: AuthorityRetired) -> None:
    state.enrolment.generations = tuple(
        replace(each, retired_ms=fact.at_ms) if each.number == fact.number else each
        for each in state.enrolment.generations
    )
    state.touched.authority = True


def _trusted(state: State, fact: AuthorityTrusted) -> None:
    enrolled, tokens = state.enrolment.enrolled, state.access.tokens
    if fact.node_id:
        enrolled[fact.node_id] = replace(enrolled[fact.node_id], generation=fact.number)
        state.touched.enrolled[fact.node_id] = None
    if fact.token_id:
        tokens[fact.token_id] = replace(tokens[fact.token_id], generation=fact.number)
        state.touched.tokens[fact.token_id] = None


def index(state: State) -> None:
    """Derive from the books what follows from them."""
    for invite in state.enrolment.invites.values():
        state.timers.add(invite.forgotten_ms, Due.INVITE, invite.invite_id)


SUBJECT = Subject(
    name="enrolment",
    apply=by_kind(_invited, _used, _forgotten, _enrolled, _disenrolled, _begun, _retired, _trusted),
    saves=(
        saving.records("enrolled", Enrolled, "enrolment.enrolled", key="node_id"),
        saving.records("invites", Invite, "enrolment.invites", key="invite_id"),
        saving.value("generations", tuple[Generation, ...], "enrolment.generations", (FIRST_GENERATION,)),
    ),
    index=index,
)
