"""What is known of nodes' keys, and of invites to bring one."""

from __future__ import annotations

from typing import Final

import msgspec

ENROLLED_MAX: Final = 100_000
INVITES_MAX: Final = 20_000
INVITE_KEPT_MS: Final = 24 * 3_600_000
"""So long after its end an invite is remembered, so that who comes with it hears what it was."""
INVITE_TTL_MAX_MS: Final = 30 * 24 * 3_600_000


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
