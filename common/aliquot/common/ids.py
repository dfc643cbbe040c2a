"""Making ids: short, hard to misread, and from a source of randomness that is an argument.

An id is a prefix and 13 Crockford base32 characters (65 random bits; no i, l, o, u). At 10⁸ ids the chance that any two
are the same is about 10⁻⁴, so callers must check that a new id is unused. `names` validates ids and names from outside.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from typing import Final, Protocol

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
ID_CHARS: Final = 13
SECRET_CHARS: Final = 26
_BITS_PER_CHAR: Final = 5
_PAIRS = tuple(first + second for first in ALPHABET for second in ALPHABET)
_PAIR = len(_PAIRS) - 1
"""Two characters at a time: an id is made for each lease."""


class RandomBits(Protocol):
    """What `random.Random` and `random.SystemRandom` offer."""

    def getrandbits(self, k: int, /) -> int:
        """A number of k random bits."""


class IdGenerator:
    """Makes ids from one source of random bits: the system's by default, a seeded one in simulation and tests."""

    __slots__ = ("_source",)

    def __init__(self, source: RandomBits | None = None) -> None:
        self._source: RandomBits = random.SystemRandom() if source is None else source

    def lease_id(self) -> str:
        """`l-` and a token."""
        return "l-" + self.token()

    def slice_id(self) -> str:
        """`s-` and a token."""
        return "s-" + self.token()

    def node_id(self) -> str:
        """`n-` and a token, for a node whose machine has no stable id of its own."""
        return "n-" + self.token()

    def idempotency_key(self) -> str:
        """`k-` and a token, for one call and its retries."""
        return "k-" + self.token()

    def secret(self) -> str:
        """130 random bits that prove who holds a lease. Compare hashes (`secret_sha256`), and never log it."""
        return self.token(SECRET_CHARS)

    def token(self, chars: int = ID_CHARS) -> str:
        """A string of `chars` random base32 characters."""
        bits = self._source.getrandbits(chars * _BITS_PER_CHAR)
        pairs, odd = divmod(chars, 2)
        shift = pairs * 2 * _BITS_PER_CHAR
        text = [ALPHABET[bits >> shift]] if odd else []
        while shift:
            shift -= 2 * _BITS_PER_CHAR
            text.append(_PAIRS[bits >> shift & _PAIR])
        return "".join(text)


def secret_sha256(secret: str) -> bytes:
    """The hash that is kept and sent instead of a lease's secret."""
    return hashlib.sha256(secret.encode()).digest()


def serving_credential(secret: str, lease_id: str, lease_epoch: int, tenant: str) -> str:
    """What a lease's clients show to the process that serves it. It follows from the lease's secret and is good for
    this epoch and tenant only; of the secret it tells nothing.
    """
    text = f"aliquot serving 1\n{lease_id}\n{lease_epoch}\n{tenant}"
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()
