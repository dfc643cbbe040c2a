"""What is known of nodes' keys, of invites to bring one, and of the generations of the pool's authority."""

from __future__ import annotations

from typing import Final

import msgspec

from aliquot.coordinator.core.values.fact import Fact

ENROLLED_MAX: Final = 100_000
INVITES_MAX: Final = 20_000
INVITE_KEPT_MS: Final = 24 * 3_600_000
"""So long after its end an invite is remembered, so that who comes with it hears what it was."""
INVITE_TTL_MAX_MS: Final = 30 * 24 * 3_600_000


class Generation(msgspec.Struct, frozen=True):
    """One certificate authority of the pool. Its key follows from the pool's secret and the salt."""

    number: int
    salt: bytes = b""
    """What an older copy of the journal does not have. Of the first there is none."""
    begun_ms: int = 0
    by: str = ""
    """The principal that had it made."""
    retired_ms: int = 0
    """Since when nobody needs to trust it any more; 0: it is trusted."""


FIRST_GENERATION: Final = Generation(1)
GENERATIONS_MAX: Final = 1_000
SALT_BYTES: Final = 32


class Enrolled(msgspec.Struct, frozen=True):
    """A node, and the one key that speaks for it."""

    node_id: str
    key_sha256: bytes
    """Of the public key's SubjectPublicKeyInfo in DER."""
    since_ms: int
    by: str = ""
    """The principal that invited it."""
    name: str = ""
    """What the node was called when it joined."""
    generation: int = 1
    """The latest of the pool's authority that it trusts, as far as it has said so."""


class Invite(msgspec.Struct, frozen=True):
    """Lets one node bring a key, once. Its text is never kept."""

    invite_id: str
    sha256: bytes
    node: str
    """The node's id or its name."""
    created_ms: int
    expires_ms: int
    by: str = ""
    used_by: str = ""
    """The id of the node that has joined with it."""
    key_sha256: bytes = b""
    """Of the key that it brought: only this one may come with the invite again, when the answer was lost."""

    @property
    def forgotten_ms(self) -> int:
        """When it is dropped from the books."""
        return self.expires_ms + INVITE_KEPT_MS


class EnrolmentBooks:
    """Everything durable about them."""

    def __init__(self) -> None:
        self.enrolled: dict[str, Enrolled] = {}
        """By node id."""
        self.invites: dict[str, Invite] = {}
        """By invite id."""
        self.generations: tuple[Generation, ...] = (FIRST_GENERATION,)
        """Of the pool's authority, the oldest first. The last is trusted, and at most one before it."""

    @property
    def newest(self) -> int:
        """The number of the latest generation."""
        return self.generations[-1].number


# --------------------
# What has happened to nodes' keys, invites and the pool's authority.


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
