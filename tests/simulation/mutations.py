"""Deliberately broken variants of production code: each must be caught, or the simulation proves nothing.

A mutant replaces a few lines by what a plausible mistake would have made of them. It is applied for the length of one
run.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec

from aliquot.agent import partitions
from aliquot.agent.core import desired as agent_desired
from aliquot.agent.core import enforcement, reservations
from aliquot.agent.core.reservations import Step
from aliquot.agent.disk import checkpoint
from aliquot.agent.processes import signals
from aliquot.coordinator.agents import greeting, listening, session
from aliquot.coordinator.core import evolve
from aliquot.coordinator.core.books.holds import HoldReleased
from aliquot.coordinator.core.books.leases.facts import LeaseEnded, LeaseGranted, SliceActive, SliceGone
from aliquot.coordinator.core.books.leases.records import SliceState
from aliquot.coordinator.core.books.ledger.ledger import CHARGED
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.commands.outcomes import AllocateOutcome, Decision
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding import nodes
from aliquot.coordinator.core.deciding import reports as reconcile
from aliquot.coordinator.core.deciding.admission import allocate
from aliquot.coordinator.core.evolve import counting
from aliquot.coordinator.core.evolve import mig as cutting
from aliquot.coordinator.core.inventory import inventory
from aliquot.coordinator.core.inventory.changes import ChangeLog
from aliquot.coordinator.core.inventory.records import DeviceClass, DeviceRecord, resolve_slice
from aliquot.coordinator.core.placement import picking, shapes
from aliquot.coordinator.core.values.types import DeviceSpec, NodeState, SlicePlan
from aliquot.coordinator.upkeep import keepalive
from aliquot.coordinator.writing import writer
from aliquot.coordinator.writing.journal.replay import replay as real_replay
from tests.simulation.mutant import Put, decide_by, mutant
from tests.simulation.sim import coordinators, store
from tests.simulation.sim.loop import current

# -- capacity


@mutant("share off by one", "a device is taken to have 1001 thousandths")
def _share(put: Put) -> None:
    def share_left_milli(self: DeviceRecord) -> int:
        if not self.healthy or not self.present or self.withheld_for:
            return 0
        return self.spec.compute_milli - self.share_used_milli + bool(self.share_used_milli)

    def has_room(self: DeviceRecord, share_milli: int, memory_bytes: int) -> bool:
        return share_milli <= share_left_milli(self) and memory_bytes <= self.memory_left_bytes

    put(DeviceRecord, "share_left_milli", property(share_left_milli))
    put(DeviceRecord, "has_room", has_room)
    put(inventory.Inventory, "reserve", _reserve_anything)


@mutant("driver's memory leased", "what the driver reserves is leased as well")
def _reserved(put: Put) -> None:
    put(DeviceSpec, "leasable_bytes", property(lambda self: self.memory_total_bytes))


@mutant("foreign memory forgotten", "memory of processes outside any lease is leased again")
def _foreign(put: Put) -> None:
    put(DeviceRecord, "memory_left_bytes", property(lambda self: self.spec.leasable_bytes - self.memory_used_bytes))
    put(DeviceRecord, "slice_for", lambda self, shape: self.device_class.slice_of(shape) if self.works else None)


@mutant("sick devices used", "health is not looked at when placing")
def _healthy(put: Put) -> None:
    put(DeviceRecord, "works", property(lambda self: self.present))


@mutant(
    "two members on a card",
    "members of a gang are put on one card although nobody said that they may be",
    scene="""
        > pool 1 of 2
        > start
        > allocate job 0.4 gang=2
    """,
)
def _on_one_card(put: Put) -> None:
    def shape_of(demand: Any, *of: Any) -> Any:
        return msgspec.structs.replace(original(demand, *of), apart=False)

    original = shapes.shape_of
    put(shapes, "shape_of", shape_of)


@mutant("stale score cache", "every third change of a device never reaches the cached scores")
def _stale(put: Put) -> None:
    note = ChangeLog.note
    count = [0]

    def forgetful(self: Any, row: int) -> None:
        count[0] += 1
        if count[0] % 3:
            note(self, row)

    put(ChangeLog, "note", forgetful)


@mutant("re-check skipped", "a placement is granted as it was found, also when its device is full: nothing refuses it")
def _recheck(put: Put) -> None:
    def slice_on(device: DeviceRecord, shape: Any) -> Any:
        base = device.spec.leasable_bytes
        share, memory = resolve_slice(shape.share_milli, shape.memory_bytes, base, base)
        return SlicePlan(device.node_id, device.spec.uuid, share, memory)

    put(picking, "slice_on", slice_on)
    put(inventory.Inventory, "reserve", _reserve_anything)


def _reserve_anything(self: Any, plan: Any) -> None:
    self._hold(self.device_record(plan.device_uuid), plan.share_milli, plan.memory_bytes, 1)


# -- nodes


@mutant("unreconciled nodes used", "a node that has registered may be granted to before it has reconciled")
def _reconciling(put: Put) -> None:
    good = (NodeState.READY, NodeState.RECONCILING, NodeState.SUSPECT)
    put(Node, "grantable", property(lambda self: not self.cordoned and (self.state in good or self.spec.agentless)))


@mutant("cordon ignored", "a cordoned node is still granted to")
def _cordoned(put: Put) -> None:
    put(
        Node,
        "grantable",
        property(lambda self: self.state is NodeState.READY or (self.spec.agentless and int(self.state) == 1)),
    )


@mutant("lost means gone", "the slices of a lost node are given away at once")
def _lost(put: Put) -> None:
    def silent(state: Any, command: Any, now_ms: int) -> Decision[None]:
        decision = original(state, command, now_ms)
        found = list(decision.facts)
        if command.lost and found:
            found += [
                SliceGone(at_ms=now_ms, lease_id=slice_id.partition(".")[0], slice_id=slice_id)
                for slice_id in state.slice_ids_by_node[command.node_id]
            ]
        return Decision(tuple(found))

    original = nodes.silent
    decide_by(put, "NodeSilent", silent)


@mutant("adoption without looking", "a node that returns is believed to hold what the books say")
def _adopts(put: Put) -> None:
    def reconcile_blindly(state: Any, command: Any, now_ms: int) -> Decision[None]:
        return original(state, msgspec.structs.replace(command, reports=()), now_ms)

    original = reconcile.reconcile
    decide_by(put, "ReconcileNode", reconcile_blindly)


# -- epochs and sessions


@mutant(
    "old orders obeyed",
    "agents obey orders of a deposed leader, or for an earlier session",
    kinds=("net.replayed_orders", "coordinator.usurped", "coordinator.crash"),
)
def _unfenced(put: Put) -> None:
    put(agent_desired, "_fenced", lambda fence, batch: None)


@mutant("session number reused", "a new leader gives session numbers that were given before, and they are accepted")
def _session_epochs(put: Put) -> None:
    def register(state: Any, command: Any, now_ms: int) -> Decision[None]:
        node = state.nodes.get(command.spec.node_id)
        if node is not None:
            state.nodes[command.spec.node_id] = msgspec.structs.replace(node, session_epoch=0)
        return original(state, command, now_ms)

    original = nodes.register
    put(greeting, "_EPOCHS_PER_LEADER", 0)
    decide_by(put, "RegisterNode", register)


@mutant(
    "old session believed",
    "confirmations of an earlier session are taken as the present one's",
    kinds=("net.last_words",),
)
def _session(put: Put) -> None:
    async def believe(self: Any, current: Any, said: Any) -> None:
        await original(self, current, type(said)(session_epoch=current.epoch, reports=said.reports))

    original = listening.Listener._reports
    put(listening.Listener, "_reports", believe)


@mutant(
    "old snapshot believed",
    "a snapshot of an earlier session is taken as the present one's",
    kinds=("net.last_words", "net.replayed_reports"),
)
def _old_snapshot(put: Put) -> None:
    async def believe(self: Any, current: Any, said: Any) -> None:
        said.session_epoch = current.epoch
        await original(self, current, said)

    original = listening.Listener._snapshot
    put(listening.Listener, "_snapshot", believe)


@mutant(
    "two machines are one node",
    "a machine made from the image of a node takes its place although that one is there",
    kinds=("node.twin",),
)
def _twins(put: Put) -> None:
    put(greeting, "refuse_second", lambda first, boot_id, quiet_since_ms: None)


@mutant("commit without condition", "a deposed coordinator's commits are accepted")
def _unconditional(put: Put) -> None:
    original = store.SimJournal.commit

    def commit(self: Any, group: Any) -> None:
        self._epoch = self._store.leader_epoch if self._epoch else 0
        original(self, replace(group, first_seq=self._store.last_seq + 1))

    put(store.SimJournal, "commit", commit)


# -- the writer and what follows it


@mutant("answer before the commit", "callers hear the outcome as soon as it is decided")
def _early(put: Put) -> None:
    original = writer.Writer._commit_if_ready

    def commit_if_ready(self: Any) -> None:
        self._committer.open.resolve()
        original(self)

    put(writer.Writer, "_commit_if_ready", commit_if_ready)


@mutant("published before synced", "the outbox follows the write, not the sync")
def _unsynced(put: Put) -> None:
    def carry_out(self: Any, call: Any, done: Any) -> None:
        self._loop.call_in(current(), 3_000, _quietly, call)
        self._tell(done, 1 if done.__name__ == "done" else None, None)

    put(store.SimJournalThread, "_carry_out", carry_out)


@mutant("key ignored", "a request that is sent again is granted again")
def _twice(put: Put) -> None:
    original = allocate.allocate

    def keyless(state: Any, command: Any, now_ms: int) -> Decision[AllocateOutcome]:
        return original(state, msgspec.structs.replace(command, key=""), now_ms)

    decide_by(put, "Allocate", keyless)


@mutant("full list not sent", "a new session is only told of what changes from then on")
def _partial(put: Put) -> None:
    def go_live(self: Any) -> None:
        self.live = True
        self._start_writing()

    put(session.Session, "go_live", go_live)


@mutant("snapshot inside a group", "a snapshot lacks the last fact of the group it names")
def _snapshot(put: Put) -> None:
    def replay(journal: Any) -> Any:
        applied = evolve.evolve
        last = journal.last_seq

        def all_but_the_last(state: Any, fact: Any) -> None:
            if state.seq + 1 == last:
                state.seq += 1
            else:
                applied(state, fact)

        from aliquot.coordinator.writing.journal import replay as replay_module

        with mock.patch.object(replay_module, "evolve", all_but_the_last):
            return real_replay(journal)

    put(coordinators, "replay", replay)


# -- leases, holds, the ledger


@mutant("release frees at once", "capacity is free as soon as the release is decided")
def _frees(put: Put) -> None:
    put(lifecycle, "is_agentless", lambda state, piece: True)


@mutant("TTLs go on at failover", "a new leader counts TTLs from when leases were made, not from its own start")
def _ttl(put: Put) -> None:
    original = keepalive.KeepAlive.lease_changed

    def lease_changed(self: Any, old: Any, new: Any) -> None:
        original(self, old, new)
        if new is not None and old is None and new.lease_id in self._until_ms:
            spent_ms = self._clock.now_ms() - max(new.created_ms, new.granted_ms)
            self._until_ms[new.lease_id] -= max(0, spent_ms)
            heapq.heappush(self._heap, (self._until_ms[new.lease_id], new.lease_id))

    put(keepalive.KeepAlive, "lease_changed", lease_changed)
    put(keepalive.KeepAlive, "start_again", lambda self: None)


@mutant("hold leaked on cancel", "the hold of a request that is cancelled stays where it is", size="crowded")
def _leaked(put: Put) -> None:
    original = evolve._APPLY[LeaseEnded]

    def lease_ended(state: Any, fact: Any) -> None:
        hold = state.holds.pop(fact.lease_id, None)
        original(state, fact)
        if hold is not None:
            state.holds[fact.lease_id] = hold

    released = {HoldReleased: lambda state, fact: None, LeaseEnded: lease_ended}
    put(evolve, "_APPLY", {**evolve._APPLY, **released})


@mutant("unreachable time charged", "a tenant pays while its node is lost")
def _charged(put: Put) -> None:
    put(counting, "CHARGED", CHARGED | {SliceState.UNREACHABLE})


@mutant("confirmation not awaited", "a slice counts as active as soon as it is granted, not when its agent says so")
def _assumed(put: Put) -> None:
    original = allocate.allocate

    def assume(state: Any, command: Any, now_ms: int) -> Decision[AllocateOutcome]:
        decision = original(state, command, now_ms)
        active = [
            SliceActive(at_ms=now_ms, lease_id=fact.lease_id, slice_id=grant.slice_id, tier=0)
            for fact in decision.facts
            if isinstance(fact, LeaseGranted)
            for grant in fact.slices
        ]
        return replace(decision, facts=(*decision.facts, *active))

    decide_by(put, "Allocate", assume)


# -- cards that are cut


@mutant("cut no more", "a card is not cut again after its machine has restarted", kinds=("agent.power",))
def _uncut(put: Put) -> None:
    async def restore(self: Any) -> None:
        self.state.cuts = dict(self._load().cuts)

    put(partitions.Partitions, "restore", restore)


@mutant(
    "granted while cut",
    "what is about to be cut away is still granted",
    kinds=("agent.slow_threads", "agent.freeze", "net.slow_node", "net.cut_node"),
    scene="""
        > card
        > start
        > slow node-0000 4
        > allocate larger 2g.10gb until=queued
        > wait 3
        > allocate small 1g.5gb until=queued gang=6 samecard=yes
    """,
)
def _granted_while_cut(put: Put) -> None:
    put(cutting, "withheld", lambda node: {})


@mutant(
    "an instance in part",
    "of a MIG instance only what was asked for is held, and charged",
    scene="""
        > pool 1 of 1
        > card
        > start
        > allocate whole 1
        > allocate part 0.14,4Gi ormig=yes
    """,
)
def _in_part(put: Put) -> None:
    original = DeviceClass.size_of

    def size_of(self: Any, demand: Any, foreign_bytes: int = 0) -> tuple[int, int]:
        share, memory = original(self, demand, foreign_bytes)
        part = self.mig_profile and not demand.mig_profile
        return (demand.share_milli or share, demand.memory_bytes or memory) if part else (share, memory)

    put(DeviceClass, "size_of", size_of)


# -- agents


@mutant("gone before gone", "an agent says that a slice is gone without waiting for its processes")
def _hasty(put: Put) -> None:
    original = reservations.next_step

    def next_step(reservation: Any, actual: Any, now_ms: int) -> Step:
        step = original(reservation, actual, now_ms)
        return Step.CONCLUDE if step in (Step.ASK_TO_END, Step.WAIT, Step.KILL) else step

    put(reservations, "next_step", next_step)


@mutant("reservations not restored", "an agent that restarts forgets what it held")
def _amnesia(put: Put) -> None:
    put(checkpoint.Checkpoint, "load", lambda self: [])


@mutant("signals by pid alone", "a process is signalled without looking whether it is still the same one")
def _by_pid(put: Put) -> None:
    def send(self: Any, target: Any, what: Any) -> Any:
        with contextlib.suppress(ProcessLookupError):
            current().host.signal(target.process.pid, what)
        return signals.Outcome.SENT

    put(signals.Signaller, "_send", send)
    from tests.simulation.sim.seams import SimProcesses

    put(SimProcesses, "alive", lambda self, process: process.pid in self._table.by_pid)


@mutant(
    "start time forgotten",
    "a process is signalled that has the number of the one that was meant, and started later",
    kinds=("process.pid_reused", "process.abuse"),
)
def _start_time(put: Put) -> None:
    original = signals.Signaller._send

    class Forgetful:
        """Whoever has the number now is taken for the one that was meant."""

        def __init__(self, processes: Any, meant: Any) -> None:
            self._processes, self._meant = processes, meant

        def __getattr__(self, name: str) -> Any:
            return getattr(self._processes, name)

        def key_of(self, pid: int) -> Any:
            return self._processes.key_of(pid) and self._meant

    def send(self: Any, target: Any, what: Any) -> Any:
        with mock.patch.object(self, "_processes", Forgetful(self._processes, target.process)):
            return original(self, target, what)

    put(signals.Signaller, "_send", send)


@mutant("limit taken as half", "the watchdog ends processes that are within their limit")
def _half(put: Put) -> None:
    original = enforcement._judge_slice

    def judge(piece: Any, *rest: Any) -> Any:
        spec = piece.reservation.spec
        less = msgspec.structs.replace(spec, memory_bytes=spec.memory_bytes // 2)
        record = msgspec.structs.replace(piece.reservation, spec=less)
        return original(msgspec.structs.replace(piece, reservation=record), *rest)

    put(enforcement, "_judge_slice", judge)


@mutant("killed at first sight", "whoever is over the limit for a moment is killed with its whole lease at once")
def _no_time_to_obey(put: Put) -> None:
    original = enforcement._judge_lease

    def judge(record: Any, device_uuid: str, excesses: Any, rules: Any, now_ms: int) -> Any:
        return original(record, device_uuid, excesses, msgspec.structs.replace(rules, over_max_ms=1), now_ms)

    put(enforcement, "_judge_lease", judge)


def _quietly(call: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        call()
