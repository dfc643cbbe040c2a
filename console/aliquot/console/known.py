"""Who a token is: asked of the pool once in a while, before anything is kept for whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from aliquot.client import NotPermitted
from aliquot.common.latest import Latest
from aliquot.console.pools import Pools

KNOWN_MAX: Final = 1_024
KNOWN_S: Final = 30.0
"""A token that has been revoked meanwhile opens nothing: the pool is asked again by whatever it is shown for."""


class Known:
    """Principals by token. Beyond `KNOWN_MAX` those who have not been asked about for longest are forgotten."""

    def __init__(self, pools: Pools, clock: Callable[[], float] = time.monotonic) -> None:
        self._pools = pools
        self._clock = clock
        self._kept: Latest[str, tuple[str, float]] = Latest(KNOWN_MAX)

    async def principal(self, token: str) -> str:
        """Whose token it is. Raises NotLoggedIn where it is nobody's, and what else the pool refuses with."""
        principal, until_s = self._kept.get(token, ("", 0.0))
        if until_s <= self._clock():
            async with self._pools.of(token) as pool:
                try:
                    principal = (await pool.access.whoami()).principal
                except NotPermitted:  # somebody, who may not ask that: a lease's own credential
                    principal = token
            until_s = self._clock() + KNOWN_S
        self._kept[token] = (principal, until_s)
        return principal
