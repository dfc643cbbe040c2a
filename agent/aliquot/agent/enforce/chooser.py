"""Chooses the strongest tier that is available, and says why not a stronger one.

A whole device needs none, whatever the request's minimum: a minimum asks for protection from neighbours, and
there are none. A part needs one of the others, at least as strong as the request demands.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError, Enforcer, Limited
from aliquot.common.tiers import Tier

NOT_NAMED = "not among this agent's tiers (its setting `enforcement.tiers`)"


class TierUnavailable(EnforcementError):
    """No tier as strong as demanded can be had for this slice here."""


class Choice(msgspec.Struct, frozen=True):
    """The tier to use, and one line for each stronger one that could not be had."""

    enforcer: Enforcer
    notes: tuple[str, ...] = ()


class Chooser:
    """Knows the tiers of this agent."""

    def __init__(self, enforcers: Sequence[Enforcer]) -> None:
        self._by_tier = {enforcer.tier: enforcer for enforcer in enforcers}

    def choose(self, limited: Limited, *, weaker_than: Tier | None = None) -> Choice:
        """The strongest tier to be had (below `weaker_than`, when that one turned out not to hold).

        Raises `TierUnavailable` with the reasons.
        """
        floor = limited.spec.min_tier
        notes: list[str] = []
        for tier in self._fitting(limited):
            enforcer = self._by_tier.get(tier)
            if weaker_than is not None and tier >= weaker_than:
                continue
            if floor is not None and tier < floor and not limited.whole_device:
                break
            problem = enforcer.available(limited) if enforcer is not None else NOT_NAMED
            if enforcer is not None and not problem:
                return Choice(enforcer, tuple(notes))
            notes.append(f"{tier.word}: {problem}")
        wanted = f"at least {floor.word}" if floor is not None else "any tier"
        raise TierUnavailable(
            f"{limited.device.uuid} can't hold a slice by {wanted}" + (f" ({'; '.join(notes)})" if notes else ""),
            hint="ask for a weaker min_tier, or for a whole device",
        )

    def offered(self, device: DeviceInfo) -> tuple[Tier, ...]:
        """The tiers that could hold some slice of a device now, weakest first."""
        found = []
        for share_milli in {device.compute_milli, 1}:
            spec = SliceSpec("", "", 0, device.uuid, share_milli, memory_bytes=1)
            limited = Limited(spec, device)
            known = [self._by_tier[tier] for tier in self._fitting(limited) if tier in self._by_tier]
            found += [each.tier for each in known if not each.available(limited)]
        return tuple(sorted(found))

    def _fitting(self, limited: Limited) -> list[Tier]:
        """Strongest first. A whole MIG instance is held by the hardware; any other whole device needs no holding."""
        fitting = {Tier.NONE, Tier.MIG} if limited.whole_device else set(Tier) - {Tier.NONE}
        return sorted(fitting, reverse=True)

    def all(self) -> list[Enforcer]:
        """Every tier's."""
        return list(self._by_tier.values())

    def of(self, tier: Tier) -> Enforcer | None:
        """The enforcer of a tier."""
        return self._by_tier.get(tier)
