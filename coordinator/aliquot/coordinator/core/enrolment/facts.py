"""What has happened to nodes' keys and invites; see `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.enrolment.records import Invite
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


class NodeDisenrolled(Fact, frozen=True, tag="enrol-"):
    """No key speaks for the node any more."""

    node_id: str
