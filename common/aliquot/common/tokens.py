"""Tokens: what a caller shows to be known. Opaque and random; the coordinator keeps their SHA-256 only.

    alq_<id>_<secret>          of a person, a service or a session
    alq_lease_<lease id>_<…>   of the programs of a lease: the lease's own secret, good for that lease while it lives
    alq_invite_<id>_<secret>   lets one node join, once

The prefix lets scanners of source code find a token that was checked in. A random secret of 256 bits needs no salt and
no slow hash: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from aliquot.common.errors import ConfigError

METADATA_KEY = "authorization"
SCHEME = "Bearer "
CHARS_MAX = 256
_ID_CHARS, _SECRET_CHARS = 12, 64
_TOKEN = re.compile(rf"alq_([0-9a-f]{{{_ID_CHARS}}})_([0-9a-f]{{{_SECRET_CHARS}}})")
_LEASE = re.compile(r"alq_lease_(l-[0-9a-hjkmnp-tv-z]{13})_([0-9a-f]{64})")
_INVITE = re.compile(rf"alq_invite_([0-9a-f]{{{_ID_CHARS}}})_([0-9a-f]{{{_SECRET_CHARS}}})")
_ANY = re.compile(r"alq(?:_|1\.)[0-9A-Za-z_-]{8,}")
_VISIBLE = re.compile(rf"[!-~]{{1,{CHARS_MAX}}}")


@dataclass(frozen=True, slots=True)
class LeaseToken:
    """What a lease's token says."""

    lease_id: str
    secret: str


def make_token(entropy: bytes) -> tuple[str, str]:
    """(id, text) of a new token, from 38 random bytes."""
    if len(entropy) != (_ID_CHARS + _SECRET_CHARS) // 2:
        raise ValueError("a token is made of 38 random bytes")
    text = entropy.hex()
    return text[:_ID_CHARS], f"alq_{text[:_ID_CHARS]}_{text[_ID_CHARS:]}"


def make_invite(entropy: bytes) -> tuple[str, str]:
    """(id, text) of a new invite, from 38 random bytes."""
    token_id, text = make_token(entropy)
    return token_id, text.replace("alq_", "alq_invite_", 1)


def invite_id_of(text: str) -> str | None:
    """The id within an invite's text; None where it is none."""
    found = _INVITE.fullmatch(text)
    return found.group(1) if found is not None else None


ENTROPY_BYTES = (_ID_CHARS + _SECRET_CHARS) // 2


def token_id_of(text: str) -> str | None:
    """The id within a token's text; None where it is no token of this form."""
    found = _TOKEN.fullmatch(text)
    return found.group(1) if found is not None else None


def token_sha256(text: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(text.encode()).digest()


def lease_token(lease_id: str, secret: str) -> str:
    """The token of a lease's programs."""
    return f"alq_lease_{lease_id}_{secret}"


def read_lease_token(text: str) -> LeaseToken | None:
    """What a lease's token says; None where it is none. Whether it is right, its secret decides."""
    found = _LEASE.fullmatch(text)
    return LeaseToken(found.group(1), found.group(2)) if found is not None else None


def bearer(text: str) -> tuple[str, str]:
    """The metadata that carries a token."""
    return METADATA_KEY, SCHEME + text


def check_token(text: str, where: str) -> str:
    """The text, if a token can look like that: it may be supplied by an operator, so its form is open. Raises
    `ConfigError`, which never repeats it.
    """
    if not _VISIBLE.fullmatch(text):
        raise ConfigError(
            f"{where} holds no token" if not text else f"what {where} holds is no token",
            hint=f"a token is one word of at most {CHARS_MAX} visible characters: alq_…",
        )
    return text


def without_tokens(text: str) -> str:
    """The text without the tokens and login strings in it, for logs and errors that repeat what they were given."""
    return _ANY.sub("alq_…", text)
