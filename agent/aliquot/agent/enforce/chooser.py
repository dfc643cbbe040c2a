"""Choosing a tier: the strongest that can be had, and why not a stronger one.

A whole device needs none, whatever the request's minimum: a minimum asks for protection from neighbours, and
there are none. A part needs one of the others, at least as strong as the request demands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError, Enforcer, Limited
from aliquot.common.tiers import Tier


class TierUnavailable(EnforcementError):
    """No tier as strong as demanded can be had for this slice here."""

    reason = "TIER_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Choice:
    """The tier to use, and one line for each stronger one that could not be had."""

    enforcer: Enforcer
    notes: tuple[str, ...] = ()


class Chooser:
    """Knows the tiers of this agent."""

    def __init__(self, enforcers: Sequence[Enforcer]) -> None:
        self._strongest_first = sorted(enforcers, key=lambda enforcer: -enforcer.tier)
        self._by_tier = {enforcer.tier: enforcer for enforcer in reversed(self._strongest_first)}

    def choose(self, limited: Limited, *, weaker_than: Tier | None = None) -> Choice:
        """The strongest tier to be had (below `weaker_than`, when that one turned out not to hold).

        Raises `TierUnavailable` with the reasons.
        """
        floor = limited.spec.min_tier
        notes: list[str] = []
        for enforcer in self._fitting(limited):
            if weaker_than is not None and enforcer.tier >= weaker_than:
                continue
            if floor is not None and enforcer.tier < floor and not limited.whole_device:
                break
            problem = enforcer.available(limited)
            if not problem:
                return Choice(enforcer, tuple(notes))
            notes.append(f"{enforcer.tier.word}: {problem}")
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
            found += [each.tier for each in self._fitting(limited) if not each.available(limited)]
        return tuple(sorted(found))

    def _fitting(self, limited: Limited) -> list[Enforcer]:
        """Strongest first. A whole MIG instance is held by the hardware; any other whole device needs no
        holding.
        """
        fitting = {Tier.NONE, Tier.MIG} if limited.whole_device else set(Tier) - {Tier.NONE}
        return [each for each in self._strongest_first if each.tier in fitting]

    def of(self, tier: Tier) -> Enforcer | None:
        """The enforcer of a tier."""
        return self._by_tier.get(tier)
