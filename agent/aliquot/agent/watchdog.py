"""Carries out the watchdog's decisions: one call for each look at a device."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping

import msgspec

from aliquot.agent.core.accounting import DeviceUsage, SliceUsage
from aliquot.agent.core.enforcement import HARD_TIERS, Act, Decision, Rules, Watch, judge, needs_second_look
from aliquot.agent.core.model import Holder
from aliquot.agent.core.overtime import Record, Seen
from aliquot.agent.duties import SIGNALLING
from aliquot.agent.processes.containment import Containment
from aliquot.agent.processes.signals import Outcome, Signaller, Target
from aliquot.agent.state import EnforcementAct, NodeState
from aliquot.agent.wakeup import Wakeup
from aliquot.common.clock import Clock
from aliquot.common.tiers import Tier

log = logging.getLogger(__name__)

KILL_ROUNDS = 8
"""How often members of a lease are searched for while they are killed: without a cgroup they may fork meanwhile."""

_SIGNALS = {Act.TERMINATE: signal.SIGTERM, Act.KILL: signal.SIGKILL}


class Watchdog(msgspec.Struct, eq=False):
    """Remembers offences between polls: of processes, and of leases.

    `observe` is told of every slice that was seen: a tier may keep an account of its own.
    """

    state: NodeState
    containment: Containment
    signaller: Signaller
    rules: Rules
    clock: Clock
    observe: Callable[[SliceUsage], None]
    condemned: Wakeup
    """Set when a lease is condemned; see `NodeState.condemned`."""
    tell: Callable[[Mapping[str, Record]], None]
    """Is shown the time over limits by tenant after every look: the coordinator tells other nodes of it."""
    _watch: Watch = msgspec.field(default_factory=Watch)
    acts: dict[Act, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Act, 0))
    """How often each kind of decision was taken, for metrics."""
    breaches: dict[Tier, int] = msgspec.field(default_factory=lambda: dict.fromkeys(HARD_TIERS, 0))
    """How often a slice was seen over its limit although its tier denies that, for metrics."""

    def check(self, usage: DeviceUsage) -> None:
        """Decide about a poll of a device and act at once."""
        for piece in usage.slices:
            self.observe(piece)
        tiers = self._tiers(usage)
        before = self._watch.of(usage.device_uuid).offences
        now_ms = self.clock.monotonic_ms()
        self._watch, decisions = judge(self._watch, usage, tiers, self.rules, now_ms, self._tenant_of)
        for slice_id, offence in self._watch.of(usage.device_uuid).offences.items():
            if offence.why and not (slice_id in before and before[slice_id].why):
                self._note_breach(usage.device_uuid, slice_id, tiers[slice_id])
        for decision in decisions:
            self._carry_out(decision)
        self.tell(self._watch.records)

    def hear(self, elsewhere: Mapping[str, Seen]) -> None:
        """What others saw of tenants, who answer for it here as well."""
        for tenant, seen in elsewhere.items():
            self._watch = self._watch.told(tenant, seen)

    def suspects(self, device_uuid: str) -> bool:
        """Whether a device is to be polled more often: a lease on it was over a limit within the last minute."""
        if self._watch.quiet(device_uuid):
            return False
        specs = (record.spec for record in self.state.reserved_on(device_uuid))
        return self._watch.suspects(device_uuid, {spec.tenant or spec.lease_id for spec in specs})

    @property
    def saw_strays(self) -> bool:
        """Whether processes of leases were seen within the last minute on devices where they have no slice."""
        return bool(self._watch.strayed_ms)

    def forget(self, device_uuid: str) -> None:
        """The device is not there any more."""
        self._watch = self._watch.without(device_uuid)

    def needs_second_look(self, usage: DeviceUsage) -> bool:
        """Whether a poll must be repeated before it is judged; see `core.enforcement.needs_second_look`."""
        return needs_second_look(usage, self._tiers(usage))

    def _tiers(self, usage: DeviceUsage) -> dict[str, Tier]:
        """What holds each slice now."""
        return {
            piece.reservation.slice_id: actual.tier
            for piece in usage.slices
            if (actual := self.state.actual_of(piece.reservation.slice_id)).tier is not None
        }

    def _tenant_of(self, lease_id: str) -> str:
        """Who answers for a lease: its tenant, where it has one."""
        records = self.state.book.of_lease(lease_id)
        return records[0].spec.tenant or lease_id if records else lease_id

    def _note_breach(self, device_uuid: str, slice_id: str, tier: Tier) -> None:
        if tier in HARD_TIERS:
            self.breaches[tier] += 1
            log.error("tier %s did not hold slice %s to its limit on %s", tier.word, slice_id, device_uuid)

    def _carry_out(self, decision: Decision) -> None:
        self.acts[decision.act] += 1
        self.state.acts.append(EnforcementAct(self.clock.now_ms(), decision))
        if decision.act in (Act.KILL_ALL, Act.END_LEASE):
            log.error("%s: %s on %s", decision.act.value, decision.why, decision.device_uuid)
            self._kill_all(decision)
            if decision.act is Act.END_LEASE:
                self.state.condemned[decision.holder.lease_id] = decision.why
                self.condemned.set()
            return
        what = _SIGNALS.get(decision.act)
        if what is None or decision.process is None:
            log.warning("%s: %s on %s", decision.act.value, decision.why, decision.device_uuid)
            return
        holder = self.containment.holder_like(decision.process.pid, decision.holder)
        outcome = self.signaller.send(Target(decision.process, holder, decision.why, decision.slice_id), what)
        if outcome is Outcome.FORBIDDEN:
            self.state.duties.tell(
                SIGNALLING,
                "some processes of leases can't be signalled by this user: run the agent as root, or as their user",
            )

    def _kill_all(self, decision: Decision) -> None:
        """Every process of the lease on this node; where there is a cgroup, nothing in it can fork meanwhile."""
        records = self.state.book.of_lease(decision.holder.lease_id)
        for holder in sorted({record.spec.holder for record in records}):
            self.containment.freeze(holder, frozen=True)
            try:
                self._kill_members(holder, decision)
            finally:
                self.containment.freeze(holder, frozen=False)

    def _kill_members(self, holder: Holder, decision: Decision) -> None:
        killed = set()
        for _ in range(KILL_ROUNDS):
            fresh = [process for process in self.containment.members(holder) if process not in killed]
            if not fresh:
                return
            killed.update(fresh)
            for process in fresh:
                target = Target(process, holder, decision.why, decision.slice_id)
                self.signaller.send(target, signal.SIGKILL)
