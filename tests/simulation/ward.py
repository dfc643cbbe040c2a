"""A campaign of faults: each row of the signal table is raised on a small pool, acted upon, healed; the card returns.

Production coordinators and agents in simulated time, with the auditor listening. What a row shows is read through the
public calls: which incident covers the card, what its lease was told, and when it was back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from aliquot.agent.core import signals
from aliquot.agent.core.samples import DeviceEvent, RecoveryAction
from aliquot.agent.core.signals import Signal
from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.v1 import leases_pb2, pool_pb2, types_pb2
from tests.simulation.sim.loop import US_PER_S
from tests.simulation.sim.machine import SimDevice
from tests.simulation.sim.nodes import REPAIRS, SimNode
from tests.simulation.stage import LEASES, POOL, Stage

STORM_PROGRAM, STORM_TEARDOWN = 1_000, 168_924
OUT_WITHIN_S = 900
BACK_WITHIN_S = 7_200
Act = Callable[["Ward"], None]


def _nothing(ward: Ward) -> None:
    """The repair has cured it."""


@dataclass(frozen=True)
class Row:
    """One row of the campaign."""

    signal: Signal
    raised: Act
    cured: Act = _nothing
    """What somebody else than the pool does about the cause."""
    note: str = ""

    @property
    def takes_out(self) -> bool:
        """Whether a card must be out of service for it."""
        return self.signal.takes_out


@dataclass(frozen=True)
class Outcome:
    """What became of a row; times in simulated seconds."""

    row: Row
    out_s: float | None = None
    """From the cause until the card was out of service."""
    repair_s: float | None = None
    """From the first bad sign until service."""
    done: str = ""
    told: bool = False
    wrong: int = 0
    """Cards that were out of service and should not have been."""
    stuck: int = 0
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all went as the table says."""
        return not (self.problems or self.wrong or self.stuck)


class Ward(Stage):
    """One node with two cards, one of which gets sick; its agent may reset cards and restart the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.sick = ""

    @property
    def node(self) -> SimNode:
        """The node."""
        return self.world.nodes[0]

    @property
    def card(self) -> SimDevice:
        """The sick card."""
        return self.node.devices[self.sick]

    def open(self, *, field_230: bool = True) -> None:
        """The pool works, and a lease is on the card."""
        self.play("pool 1 of 2")
        self.node.repairs_with(REPAIRS)
        for device in self.node.devices.values():
            device.recovery = RecoveryAction.NONE if field_230 else None
            device.sample |= {"links_up": 12, "pcie_width": 16, "fabric_state": 3, "margin_c": 30}
        self.play("start")
        self.play("wait 40")
        self.play("allocate job-0 0.5 grace=5 ttl=86400 limit=86400")
        self.sick = self.lease("job-0").slices[0].device_uuid

    def lease(self, name: str) -> types_pb2.Lease:
        """As its launcher would see it."""
        data = self._call(LEASES, "Get", leases_pb2.GetRequest(lease_id=self._leases[name]))
        assert data is not None
        return types_pb2.Lease.FromString(data)

    @property
    def told(self) -> bool:
        """Whether the lease on the card was told what happened."""
        return any(self.lease(name).warnings for name in self._leases)

    def health(self, number: int = 0) -> pool_pb2.Health:
        """What the pool says."""
        data = self._call(POOL, "GetHealth", pool_pb2.GetHealthRequest(incident=number))
        assert data is not None, "the coordinator does not answer"
        return pool_pb2.Health.FromString(data)

    def hear(self, xid: int, times: int = 1, pid: int | None = None, *, from_log: bool = False) -> None:
        """The driver, or the kernel's log, tells of an XID on the card, so many times. The log's word takes a card out
        only where the card confirms it (tests/agent/test_care.py).
        """
        node = self.node
        assert node.take_event is not None
        assert node.process is not None
        event = DeviceEvent(self.card.info.uuid, xid, pid=pid, from_log=from_log)
        self.world.loop.start(node.process, node.take_event(event, times), "xid")

    def until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until something is so; whether it came to be."""
        end_us = self.world.loop.now_us + int(seconds * US_PER_S)
        while not true():
            if self.world.loop.now_us >= end_us or self.violations:
                return False
            self._pass(US_PER_S)
        return True

    def by_hand(self) -> None:
        """A person has seen to it, and has the card tested."""
        request = pool_pb2.VerifyDeviceRequest(uuid=self.card.info.uuid, reason="replaced")
        self._call(POOL, "VerifyDevice", request)


def replace_problems(outcome: Outcome, problems: tuple[str, ...]) -> Outcome:
    """The same, with what the auditor has found."""
    return replace(outcome, problems=(*outcome.problems, *problems))


def run_row(row: Row) -> Outcome:
    """Play one row."""
    ward = Ward()
    with ward.playing():
        field_230 = row.signal not in WITHOUT_230
        ward.open(field_230=field_230)
        begun_us = ward.world.loop.now_us
        row.raised(ward)
        outcome = _watched(ward, row, begun_us) if row.takes_out else _left_alone(ward, row)
        return outcome if not ward.violations else replace_problems(outcome, tuple(ward.violations))


def _watched(ward: Ward, row: Row, begun_us: int) -> Outcome:
    seen: list[pool_pb2.Incident] = []

    def is_out() -> bool:
        seen[:] = [each for each in ward.health().open if each.cause == row.signal.cause or row.signal is COUNT_TOO_LOW]
        return bool(seen)

    if not ward.until(is_out, OUT_WITHIN_S):
        return Outcome(row, problems=(f"no incident of {row.signal.cause} within {OUT_WITHIN_S} s",))
    out_s = (ward.world.loop.now_us - begun_us) / US_PER_S
    told = ward.told
    number = seen[0].number
    alone = row.signal.scope <= Scope.CARD and row.signal is not COUNT_TOO_LOW  # the node is restarted
    expected = {ward.card.info.uuid} if alone else set(ward.node.devices)
    wrong = len({uuid for each in ward.health().open for uuid in each.uuids} - expected)
    if row.cured is not _nothing:
        ward.until(lambda: _waits(ward), 600)
        row.cured(ward)
    back: list[pool_pb2.Incident] = []

    def is_back() -> bool:
        health = ward.health(number)
        back[:] = [each for each in (*health.open, *health.closed) if each.back_ms]
        return bool(back)

    if not ward.until(is_back, BACK_WITHIN_S):
        return Outcome(row, out_s, told=told, wrong=wrong, stuck=1)
    incident = back[0]
    done = " → ".join(dict.fromkeys(types_pb2.Standing.Name(step.state)[9:].lower() for step in incident.steps))
    done = done.replace("unspecified", "closed")
    stuck = sum(not _usable(ward, uuid) for uuid in ward.node.devices)
    return Outcome(row, out_s, (incident.back_ms - incident.opened_ms) / 1000, done, told, wrong, stuck)


def _waits(ward: Ward) -> bool:
    """Whether the incident has come as far as it comes by itself."""
    held = types_pb2.STANDING_DRAINED, types_pb2.STANDING_SERVICE, types_pb2.STANDING_QUARANTINED
    since = [each for each in ward.health().open if each.state in held]
    now_ms = ward.world.auditor.books.at_ms
    waits_ms = {types_pb2.STANDING_QUARANTINED: 60_000, types_pb2.STANDING_DRAINED: 20_000}
    return bool(since) and all(now_ms - each.since_ms > waits_ms.get(each.state, 0) for each in since)


def _usable(ward: Ward, uuid: str) -> bool:
    card = ward.world.auditor.books.cards.get(uuid)
    return card is not None and card.healthy


def _left_alone(ward: Ward, row: Row) -> Outcome:
    """Nothing may come of it but that the lease is told, where it concerns a lease."""
    ward.play("wait 120")
    health = ward.health()
    wrong = sum(len(each.uuids) for each in (*health.open, *health.closed))
    told = ward.told
    problems = () if told == (row.signal.severity is Severity.LEASE) else (f"the lease was told: {told}",)
    living = all(ward.lease(name).state == types_pb2.LEASE_STATE_ACTIVE for name in ward._leases)
    if not living:
        problems = (*problems, "a lease has ended")
    return Outcome(row, told=told, wrong=wrong, done="the lease is told" if told else "counted", problems=problems)


def _set(**values: object) -> Act:
    def act(ward: Ward) -> None:
        for name, value in values.items():
            setattr(ward.card, name, value)

    return act


def _sample(**values: object) -> Act:
    def act(ward: Ward) -> None:
        ward.card.sample |= values

    return act


def _xid(number: int, times: int = 1) -> Act:
    return lambda ward: ward.hear(number, times)


def _lost(ward: Ward) -> None:
    ward.hear(79, from_log=True)
    ward.card.lost = True
    for proc in ward.node.listed(ward.card.info.uuid):
        ward.node.exit(proc)


def _replays(ward: Ward) -> None:
    for minute in range(1, 4):
        ward.card.sample["pcie_replays"] = 100 * minute
        ward.play("wait 61")


def _held_down(ward: Ward) -> None:
    ward.card.sample["clock_event_reasons"] = 0x8
    ward.play("wait 240")
    ward.card.sample["clock_event_reasons"] = 0


def _unplugged(ward: Ward) -> None:
    ward.node.unplugged.add(ward.card.info.uuid)
    for proc in ward.node.listed(ward.card.info.uuid):
        ward.node.exit(proc)


def _replaced(ward: Ward) -> None:
    ward.card.remap_failed = False
    ward.by_hand()


def _recabled(ward: Ward) -> None:
    ward.play("release job-0")
    ward.play("wait 20")
    _replaced(ward)


COUNT_TOO_LOW = Signal(
    "count-too-low", "a listed card is listed no more", Severity.FATAL, Scope.CARD, Remedy.REBOOT,
    "it is listed again, and verified",
)  # fmt: skip
"""The coordinator's own row: it compares what a node lists with what it had."""
WITHOUT_230 = (
    signals.UNCONTAINED, signals.ENGINE, signals.RESET_ASKED, signals.REMAP_PENDING, signals.RESTART, signals.SUPPORT,
    signals.POWER_CABLES, signals.LINKS,
)  # fmt: skip
"""Played on a driver that has no recovery action, so that the signal itself judges."""

ROWS = (
    Row(signals.RECOVERY_RESET, _set(recovery=RecoveryAction.RESET)),
    Row(signals.RECOVERY_REBOOT, _set(recovery=RecoveryAction.REBOOT)),
    Row(signals.RECOVERY_ISLAND, _set(recovery=RecoveryAction.DRAIN_AND_RESET)),
    Row(signals.OFF_THE_BUS, _lost),
    Row(COUNT_TOO_LOW, _unplugged, note="the restart finds it again"),
    Row(signals.RESTART, _xid(151)),
    Row(signals.UNCONTAINED, _xid(95)),
    Row(signals.ENGINE, _xid(119)),
    Row(signals.RESET_ASKED, _xid(136)),
    Row(signals.NOT_ANSWERING, _set(hung=True), _set(hung=False), note="the driver answers again"),
    Row(signals.REMAP_PENDING, _sample(remap_pending=True), lambda ward: ward.play("release job-0")),
    Row(signals.REMAP_FAILED, _set(remap_failed=True), _replaced),
    Row(signals.SUPPORT, _xid(142), _replaced),
    Row(signals.POWER_CABLES, _xid(54), _recabled),
    Row(signals.LINKS, _sample(links_up=11), _sample(links_up=12)),
    Row(signals.FABRIC, _sample(fabric_state=2), _sample(fabric_state=3)),
    Row(signals.CLOCKS_HELD, _held_down),
    Row(signals.HOT, _sample(margin_c=0), _sample(margin_c=10)),
    Row(signals.PCIE_REPLAYS, _replays),
    Row(signals.PCIE_WIDTH, _sample(pcie_width=8), _sample(pcie_width=16)),
    Row(signals.CONTAINED, _xid(94)),
    Row(signals.PROGRAM, _xid(31, STORM_PROGRAM), note=f"{STORM_PROGRAM:,} XID 31 of one tenant"),
    Row(signals.TEARDOWN, _xid(45, STORM_TEARDOWN), note=f"{STORM_TEARDOWN:,} XID 45"),
    Row(signals.RECORDED, _xid(63)),
    Row(signals.NOTICE, _xid(163)),
    Row(signals.POWER_CAP, _sample(clock_event_reasons=0x4)),
)
