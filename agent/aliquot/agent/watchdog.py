"""Carries out the watchdog's decisions: one call for each poll of a device."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from aliquot.agent.core.accounting import DeviceUsage, SliceUsage
from aliquot.agent.core.enforcement import HARD_TIERS, Act, Decision, Rules, Watch, judge, needs_second_look
from aliquot.agent.processes.containment import Containment
from aliquot.agent.processes.signals import Outcome, Signaller, Target
from aliquot.agent.state import EnforcementAct, NodeState
from aliquot.common.clock import Clock
from aliquot.common.tiers import Tier

log = logging.getLogger(__name__)

_SIGNALS = {Act.TERMINATE: signal.SIGTERM, Act.KILL: signal.SIGKILL}


class Watchdog:
    """Remembers each device's offences between polls."""

    def __init__(
        self,
        state: NodeState,
        containment: Containment,
        signaller: Signaller,
        rules: Rules,
        clock: Clock,
        observe: Callable[[SliceUsage], None] = lambda usage: None,
    ) -> None:
        """`observe` is told of every slice that was seen: a tier may keep an account of its own."""
        self._observe = observe
        self._state = state
        self._containment = containment
        self._signaller = signaller
        self._rules = rules
        self._clock = clock
        self._watches: dict[str, Watch] = {}
        self.acts: dict[Act, int] = dict.fromkeys(Act, 0)
        """How often each kind of decision was taken, for metrics."""
        self.breaches: dict[Tier, int] = dict.fromkeys(HARD_TIERS, 0)
        """How often a slice was seen over its limit although its tier denies that, for metrics."""

    def check(self, usage: DeviceUsage) -> list[Decision]:
        """Decide about a poll of a device and act at once. Returns what was decided."""
        for piece in usage.slices:
            self._observe(piece)
        tiers = self._tiers(usage)
        watch = self._watches.get(usage.device_uuid, Watch())
        now_ms = self._clock.monotonic_ms()
        judged, decisions = judge(watch, usage, tiers, self._rules, now_ms)
        self._watches[usage.device_uuid] = judged
        for slice_id in judged.offences.keys() - watch.offences.keys():
            self._note_breach(usage.device_uuid, slice_id, tiers[slice_id])
        for decision in decisions:
            self._carry_out(decision)
        return decisions

    def forget(self, device_uuid: str) -> None:
        """The device is not there any more."""
        self._watches.pop(device_uuid, None)

    def needs_second_look(self, usage: DeviceUsage) -> bool:
        """Whether a poll must be repeated before it is judged; see `core.enforcement.needs_second_look`."""
        return needs_second_look(usage, self._tiers(usage))

    def _tiers(self, usage: DeviceUsage) -> dict[str, Tier]:
        """What holds each slice now."""
        return {
            piece.reservation.slice_id: actual.tier
            for piece in usage.slices
            if (actual := self._state.actual_of(piece.reservation.slice_id)).tier is not None
        }

    def _note_breach(self, device_uuid: str, slice_id: str, tier: Tier) -> None:
        if tier in HARD_TIERS:
            self.breaches[tier] += 1
            log.error("tier %s did not hold slice %s to its limit on %s", tier.word, slice_id, device_uuid)

    def _carry_out(self, decision: Decision) -> None:
        self.acts[decision.act] += 1
        self._state.acts.append(EnforcementAct(self._clock.now_ms(), decision))
        what = _SIGNALS.get(decision.act)
        if what is None or decision.process is None:
            log.warning("%s: %s on %s", decision.act.value, decision.why, decision.device_uuid)
            return
        holder = self._containment.holder_like(decision.process.pid, decision.holder)
        outcome = self._signaller.send(Target(decision.process, holder, decision.why, decision.slice_id), what)
        if outcome is Outcome.FORBIDDEN:
            self._state.notes["signals"] = (
                "some processes of leases can't be signalled by this user: run the agent as root, or as their user"
            )
