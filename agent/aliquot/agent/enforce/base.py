"""The protocol of a tier of enforcement.

Methods are synchronous and may call a driver; the agent runs them through `DeviceGuard`. `apply` is idempotent: it is
called again after every restart of the agent, and whenever `read_back` says that the limit is not in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from aliquot.agent.core.model import Holder, SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.common.errors import AliquotError
from aliquot.common.tiers import Tier

PROOFS = "proofs.json"
"""In the state directory: what `aliquot doctor` has proven here."""


class EnforcementError(AliquotError):
    """A limit could not be set, read or cleared."""


class Limited(msgspec.Struct, frozen=True):
    """A slice as a tier sees it."""

    spec: SliceSpec
    device: DeviceInfo
    cgroup: str | None = None
    """The holder's leaf, as /proc/pid/cgroup names it; None where processes are not followed by cgroup."""
    attached: tuple[str, ...] = ()
    """Cgroups of others that were attached to the holder, named likewise."""

    @property
    def whole_device(self) -> bool:
        """True where nobody else can take of the device's memory (a MIG instance is one), so that there is nobody to
        protect.
        """
        return self.spec.share_milli >= self.device.compute_milli and not self.device.memory_shared


class Cgroups(msgspec.Struct, frozen=True):
    """What tiers that limit cgroups need to know."""

    why_none: Callable[[], str] = lambda: ""
    """Why leases have no cgroups here; empty: they have."""
    base: Callable[[], str] = lambda: ""
    """Below which leases get theirs, as /proc/pid/cgroup names it; empty: there is none."""
    proofs: Path | None = None
    """Where `aliquot doctor` keeps what it has proven on this machine; None: nowhere, and nothing counts as proven."""
    proving: bool = False
    """The doctor itself asks: what has to be proven is offered, to be tried."""


class Enforcer(Protocol):
    """One tier."""

    tier: Tier

    def available(self, limited: Limited) -> str:
        """Empty when this tier can hold the slice here and now; else why not, in words a user can act on."""

    def apply(self, limited: Limited) -> None:
        """Set the limit. Raises `EnforcementError`."""

    def read_back(self, limited: Limited) -> bool:
        """Whether the limit is in force now, as the enforcing part itself says. Raises `EnforcementError`."""

    def clear(self, limited: Limited) -> None:
        """Take the limit away; one that is not there is no error. Raises `EnforcementError`."""

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """What the lease's processes must have set for this tier to hold them."""

    def forget(self, holder: Holder) -> None:
        """Keep nothing of a holder that has no slice here any more, also where its limit could not be cleared because
        the device had gone. Raises `EnforcementError`.
        """
