"""What a share of compute is worth in each tier, and tiers that get the preload library's pace beside their limit.

Only `mig` and `mps` have a knob in the hardware or its driver. Where memory is held otherwise, the driver gives every
busy process as much time as any other; the library then makes launches wait as the agent says (`core.pacing`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

from aliquot.agent.core.model import Holder
from aliquot.agent.enforce.base import EnforcementError, Enforcer, Limited
from aliquot.agent.enforce.preload import PreloadEnforcer
from aliquot.common.tiers import ON_SHARE, Tier

if TYPE_CHECKING:
    from aliquot.agent.enforce.mps import MpsEnforcer

_NOTHING = "guarantees nothing: the driver gives each busy process as much time as any other"


class Paced:
    """See `base.Enforcer`. A tier that needs no library in programs, and where there is one uses it for their pace.

    A program that does not load it is held by the tier as before, and keeps no pace.
    """

    def __init__(self, enforcer: Enforcer, library: PreloadEnforcer) -> None:
        self.enforcer = enforcer
        self.library = library
        self.tier = enforcer.tier

    def available(self, limited: Limited) -> str:
        """As the tier itself says."""
        return self.enforcer.available(limited)

    def apply(self, limited: Limited) -> None:
        """Set the limit, and prepare the library's files: without them the tier holds all the same. Raises
        `EnforcementError`.
        """
        self.enforcer.apply(limited)
        if self.library.paces(limited) and not self.library.available(limited):
            with contextlib.suppress(EnforcementError):
                self.library.apply_pace_only(limited)

    def read_back(self, limited: Limited) -> bool:
        """Of the limit. Raises `EnforcementError`."""
        return self.enforcer.read_back(limited)

    def clear(self, limited: Limited) -> None:
        """Take both away. Raises `EnforcementError`."""
        self.enforcer.clear(limited)
        self.library.clear(limited)

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """The tier's own; the library's is merged with what a program has: see `assembly.environment_of`."""
        return self.enforcer.environment(limited)

    def forget(self, holder: Holder) -> None:
        """Raises `EnforcementError`."""
        self.enforcer.forget(holder)
        self.library.forget(holder)


def library_of(enforcer: Enforcer, limited: Limited) -> PreloadEnforcer | None:
    """The library that a slice's programs load; None: none."""
    if isinstance(enforcer, PreloadEnforcer):
        return enforcer
    return enforcer.library if isinstance(enforcer, Paced) and enforcer.library.is_set(limited) else None


def share_note(enforcer: Enforcer, limited: Limited) -> str:
    """What a slice's share is worth beside other tenants, for people; empty: nobody is beside it."""
    if limited.whole_device:
        return ""
    share = f"{ON_SHARE}{limited.spec.share_milli / 1000:g}"
    library = library_of(enforcer, limited)
    if library is not None and library.paces(limited):
        return (
            f"{share} is a guarantee, within 5 points of the device's time, while others are busy too, and no cap "
            "while there is time left; it holds among programs that load the preload library"
        )
    if is_mps(enforcer):
        if enforcer.together:
            return f"{share} is a cap on the multiprocessors, which other tenants' programs leave free for it"
        return (
            f"{share} is a cap on the multiprocessors, and no guarantee: each tenant has a server of its own, servers "
            f"take turns, so beside one busy tenant it comes to about {limited.spec.share_milli / 2000:g}"
        )
    return f"{share} {_NOTHING}"


def is_mps(enforcer: Enforcer | None) -> TypeGuard[MpsEnforcer]:
    """Whether it is that of MPS, which is loaded only where settings name it."""
    return enforcer is not None and enforcer.tier is Tier.MPS
