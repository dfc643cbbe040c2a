"""How a slice's memory limit is enforced, from weakest to strongest. The numbers are those of `aliquot.v1.Tier`."""

from __future__ import annotations

import enum

from aliquot.common.errors import InvalidFieldError

NOT_SERVED = "not served"
"""How a note of a slice begins that says why nothing serves it at the moment."""
ON_SHARE = "a share of "
"""How one begins that says what its share of compute is worth."""
BESIDE_TIERS = (NOT_SERVED, ON_SHARE)
"""All other notes say why no stronger tier holds it."""


class Tier(enum.IntEnum):
    """Ordered: a request for at least `PRELOAD` is served by `MPS` too. The contract's 0 means unspecified."""

    NONE = 1
    """A whole device, held exclusively: nothing to enforce."""
    WATCHDOG = 2
    """Measured; a process over its limit is stopped."""
    PRELOAD = 3
    """Cooperative: denied inside the process by a preloaded library."""
    MPS = 4
    """Denied by the MPS server, per client process."""
    DRIVER = 5
    """Denied by the driver, per cgroup."""
    MIG = 6
    """Denied by the hardware."""

    @property
    def word(self) -> str:
        """The tier as users write it: `watchdog`."""
        return self.name.lower()

    @property
    def denies(self) -> bool:
        """Whether an allocation beyond the limit fails, rather than the process being stopped afterwards."""
        return self >= Tier.PRELOAD


def parse_tier(text: str, field: str = "tier") -> Tier:
    """Reads a tier's word, in any case. Raises `InvalidFieldError` with `field`."""
    try:
        return Tier[text.strip().upper()]
    except KeyError:
        words = ", ".join(tier.word for tier in Tier)
        raise InvalidFieldError(field, f"{text!r} is not a tier", hint=f"one of {words}, weakest first") from None
