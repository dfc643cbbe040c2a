"""Which pool this is: an id that follows from the pool's secret, so that all its coordinators say the same."""

from __future__ import annotations

import hmac

from aliquot.common.ids import ALPHABET, ID_CHARS


def pool_id(pool_secret: bytes) -> str:
    """`p-` and 13 characters. Nothing about the secret can be learnt from it."""
    number = int.from_bytes(hmac.digest(pool_secret, b"aliquot pool id 1", "sha256"))
    return "p-" + "".join(ALPHABET[number >> shift & 31] for shift in range(0, ID_CHARS * 5, 5))
