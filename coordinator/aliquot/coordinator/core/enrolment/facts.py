"""What has happened to nodes' keys, invites and the pool's authority; see `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.enrolment.records import Generation, Invite
from aliquot.coordinator.core.fact import Fact


class NodeInvited(Fact, frozen=True, tag="invite+"):
    """A node may bring a key, once."""

    invite: Invite


class InviteUsed(Fact, frozen=True, tag="invited"):
    """A node has come with it. Always followed by `NodeEnrolled`, in the same group."""

    invite_id: str
    node_id: str
    key_sha256: bytes


class InvitesForgotten(Fact, frozen=True, tag="invite-"):
    """These are over, and nobody will ask any more."""

    invite_ids: tuple[str, ...]


class NodeEnrolled(Fact, frozen=True, tag="enrol+"):
    """From now on this key speaks for the node, and no other: one of before counts no more."""

    node_id: str
    key_sha256: bytes
    by: str
    name: str = ""
    generation: int = 1
    """Of the pool's authority: the latest that it was given to trust."""


class NodeDisenrolled(Fact, frozen=True, tag="enrol-"):
    """No key speaks for the node any more."""

    node_id: str


class AuthorityBegun(Fact, frozen=True, tag="authority+"):
    """A new generation of the pool's authority: from now on it is to be trusted beside the one before it."""

    generation: Generation


class AuthorityRetired(Fact, frozen=True, tag="authority-"):
    """This generation is not to be trusted any more, and signs nothing."""

    number: int


class AuthorityTrusted(Fact, frozen=True, tag="authority="):
    """A node, or else the holder of a token, says which generation is the latest that it trusts."""

    number: int
    node_id: str = ""
    token_id: str = ""
