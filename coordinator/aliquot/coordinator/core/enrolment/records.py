"""What is known of nodes' keys, of invites to bring one, and of the generations of the pool's authority."""

from __future__ import annotations

from typing import Final

import msgspec

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
