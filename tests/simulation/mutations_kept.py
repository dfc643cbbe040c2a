"""Mistakes about what was promised: who is told to go, how often, what is told to whom, what is written first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from aliquot.agent import bookkeeping
from aliquot.agent.disk import checkpoint, durable, identity
from aliquot.coordinator.core import evolve
from aliquot.coordinator.core.books.leases.facts import LeasesForgotten
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy import ceilings, in_force, limits, offences, owning
from aliquot.coordinator.core.books.tenancy.in_force import Step
from aliquot.coordinator.core.deciding import tenancy as tenancy_decide
from aliquot.coordinator.core.inventory.records import NodeRecord
from aliquot.coordinator.core.placement import engine
from aliquot.coordinator.core.rules.preemption import choosing, displacement, victims
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.types import Demand
from aliquot.coordinator.reading import watch
from aliquot.coordinator.rpc import keeping, lease_service
from aliquot.coordinator.upkeep import keepalive
from aliquot.coordinator.wire import leases
from aliquot.coordinator.writing import committer
from tests.simulation.mutant import Put, mutant

WRITES = ("agent.crash", "agent.crash_in_save", "agent.power_in_save", "agent.power")

# -- who is told to go


@mutant("nobody is spared", "leases that turn out not to be needed are ended with the others", size="crowded")
def _unspared(put: Put) -> None:
    def reduced(self: Any, taken: Any, members: Any, victims: Any) -> dict[str, None]:
        return dict.fromkeys([*victims, *self._unneeded()])

    def unneeded(self: Any) -> list[str]:
        """One lease more, if there is one that may end."""
        eligible = self._eligible
        found = (lease_id for lease_id in self._known.leases if self._known.leases[lease_id].slices)
        return [lease_id for lease_id in found if eligible.endable_ms(lease_id) <= eligible.now_ms][:1]

    choosing.VictimChooser._unneeded = unneeded  # type: ignore[attr-defined]
    put(choosing.VictimChooser, "_reduced", reduced)


@mutant("the dearest victim", "the lease that loses the most work is ended", size="crowded")
def _dearest(put: Put) -> None:
    original = victims.lost_work

    def lost_work(lease: Lease) -> tuple[int, int]:
        slope, offset = original(lease)
        return -slope, -offset

    put(victims, "lost_work", lost_work)


@mutant("minimum not run", "a lease is preempted before it has run for as long as it asked for", size="crowded")
def _hurried(put: Put) -> None:
    original = victims.Eligibility._decide

    def decide(self: Any, lease: Any) -> int:
        request = msgspec.structs.replace(lease.request, min_run_ms=0)
        return original(self, msgspec.structs.replace(lease, request=request))

    put(victims.Eligibility, "_decide", decide)


QUOTA = ("admin.quota", "launcher.burst")


@mutant("disruptions unbounded", "a tenant's disruption budget is not looked at", size="crowded", kinds=QUOTA)
def _unbounded(put: Put) -> None:
    put(victims.Eligibility, "disruptions_left", lambda self, tenant: 1 << 40)


@mutant("disruptions forgotten", "nobody counts how often a tenant was disturbed", size="crowded", kinds=QUOTA)
def _undisturbed(put: Put) -> None:
    put(State, "disrupted", lambda self, tenant, at_ms: None)


@mutant(
    "disruptions one by one",
    "that several victims of one tenant at once are several disruptions is not looked at",
    size="crowded",
    kinds=QUOTA,
    scene="""
        > pool 1 of 2
        > start
        > tenant bio disruptions=1
        > allocate first 1 tenant=bio preemptible=yes priority=-5
        > allocate second 1 tenant=bio preemptible=yes priority=-5
        > allocate urgent 2 priority=5 until=queued
    """,
)
def _one_by_one(put: Put) -> None:
    put(displacement, "_undisturbed_until_ms", lambda question, victims: 0)


@mutant(
    "offences forgotten",
    "leases that ended as OVER_LIMIT are not held against their tenant",
    kinds=("admin.quota", "process.abuse"),
)
def _no_offences(put: Put) -> None:
    put(offences, "held", lambda tenancy, tenant, queue, now_ms: None)


# -- limits and guarantees


TWO_POLICIES = """
        > pool 4 of 2
        > start
        > within node-0000 prod
        > within node-0001 prod
        > within node-0002 lab
        > within node-0003 lab
        > declared prod placement=spread
        > queue serving pool=prod
        > queue training pool=lab placement=binpack
        > allocate s1 0.25 in=serving
        > allocate s2 0.25 in=serving
        > allocate s3 0.25 in=serving
        > allocate t1 0.25 in=training
        > allocate t2 0.25 in=training
        > allocate t3 0.25 in=training
"""


@mutant("one policy for all", "what queues and pools say of placing is not looked at", scene=TWO_POLICIES)
def _one_policy(put: Put) -> None:
    put(engine.Engine, "_placer_of", lambda self, demand: self._placers[""])


@mutant(
    "one score for all policies",
    "a place is good by the policy that was asked for first",
    scene=TWO_POLICIES.replace("pool=prod", "pool=prod placement=workload").replace(
        "in=serving", "in=serving workload=inference"
    ),
)
def _one_score(put: Put) -> None:
    def placer_of(self: engine.Engine, demand: Demand) -> Any:
        if len(self._placers) == 1 or not demand.placement:
            return original(self, demand)
        return list(self._placers.values())[1]

    original = engine.Engine._placer_of
    put(engine.Engine, "_placer_of", placer_of)


_OWNERS = """
        > pool 1 of 2
        > start
        > queue theirs
        > queue ours
        > tenant bio queue=theirs
        > tenant chem queue=ours
"""


@mutant(
    "queues of everybody",
    "a request may wait in a queue that was declared for another tenant",
    kinds=("admin.quota",),
    scene=_OWNERS + "> trespass thief chem theirs",
)
def _trespassing(put: Put) -> None:
    put(owning, "may_use", lambda tenancy, tenant, queue, apart_from="": True)


@mutant(
    "another's queue given away",
    "who manages a tenant may declare another's queue as that of a tenant below its own",
    kinds=("admin.quota",),
    scene=_OWNERS + "> give chem/thief theirs",
)
def _given_away(put: Put) -> None:
    put(tenancy_decide, "may_use", lambda tenancy, tenant, queue, apart_from="": True)


@mutant(
    "ceiling on priorities forgotten",
    "requests of any priority are accepted",
    kinds=("admin.quota",),
    scene="""
        > pool 1 of 2
        > start
        > tenant edu priority_max=0
        > allocate first 1 tenant=edu priority=5
    """,
)
def _any_priority(put: Put) -> None:
    put(ceilings, "check_priority", lambda tenants, request: None)


@mutant(
    "ceiling on what waits forgotten",
    "any number of requests of a tenant may wait",
    kinds=("admin.quota",),
    scene="""
        > pool 1 of 1
        > start
        > tenant edu waiting_max=1
        > allocate first 1 tenant=edu
        > allocate second 1 tenant=edu until=queued
        > allocate third 1 tenant=edu until=queued
        > allocate fourth 1 tenant=edu until=queued
    """,
)
def _any_number_waits(put: Put) -> None:
    put(ceilings, "full", lambda tenants, lines, tenant: None)


@mutant(
    "limits of models forgotten",
    "only limits for all models together are looked at",
    kinds=("admin.quota",),
    scene="""
        > pool 1 of 2
        > start
        > tenant edu limit=1
        > allocate first 1 tenant=edu
        > allocate second 0.5 tenant=edu until=queued
    """,
)
def _models(put: Put) -> None:
    original = limits._compare

    def compare(label: str, model: str, limit: Any, held: Any, more: Any) -> Any:
        return None if model else original(label, model, limit, held, more)

    put(limits, "_compare", compare)


@mutant(
    "windows never move",
    "which window of a quota is open is found out when it is declared, and never again",
    kinds=("admin.windows",),
    scene="""
        > pool 1 of 2
        > start
        > tenant edu window=1@daily_00:00-12:00
        > allocate first 1 tenant=edu
        > wait 90
        > allocate second 1 tenant=edu until=queued
    """,
)
def _windows_stand_still(put: Put) -> None:
    put(tenancy_decide, "over", lambda known, now_ms: iter(()))


@mutant(
    "the last window counts",
    "of several windows that are open the last is in force, not the first",
    kinds=("admin.windows",),
    scene="""
        > pool 1 of 2
        > start
        > tenant edu window=1@daily,2@daily
        > allocate first 1 tenant=edu
        > allocate second 1 tenant=edu until=queued
    """,
)
def _last_window(put: Put) -> None:
    original = in_force.steps

    def steps(quota: Any, now_ms: int, days: int = 8) -> Any:
        turned = msgspec.structs.replace(quota, windows=tuple(reversed(quota.windows)))
        last = len(quota.windows) - 1
        found = original(turned, now_ms, days=days)
        return [Step(at_ms, last - place if place >= 0 else place) for at_ms, place in found]

    put(in_force, "steps", steps)


@mutant("memory without limit", "only limits of share are looked at", kinds=("admin.quota",))
def _memory_unlimited(put: Put) -> None:
    original = limits._compare

    def compare(label: str, model: str, limit: Any, held: Any, more: Any) -> Any:
        return original(label, model, limit, (held[0], -(1 << 60)), more)

    put(limits, "_compare", compare)


@mutant(
    "guarantees without memory",
    "the memory of a guarantee is not looked at",
    size="crowded",
    kinds=("admin.quota", "launcher.burst"),
)
def _memory_of_guarantees(put: Put) -> None:
    original = limits._within

    def within(guaranteed: Any, share: int, memory: int, scale: int) -> bool:
        return original(guaranteed, share, 0, scale)

    put(limits, "_within", within)


@mutant("host memory not held", "the host memory of a gang's members is not taken off their node")
def _host_memory(put: Put) -> None:
    put(NodeRecord, "host_memory_left_bytes", property(lambda self: self.spec.host_memory_bytes))


# -- what is remembered, and told


@mutant("keys kept for ever", "the keys of leases that were forgotten are not")
def _keys(put: Put) -> None:
    original = evolve._APPLY[LeasesForgotten]

    def leases_forgotten(state: Any, fact: Any) -> None:
        known = dict(state.keys)
        original(state, fact)
        state.keys = known

    put(evolve, "_APPLY", {**evolve._APPLY, LeasesForgotten: leases_forgotten})


@mutant("ends not told", "followers are not told of leases that have ended")
def _ends(put: Put) -> None:
    original = watch._Batch.changes

    def changes(self: Any, records: Any) -> Any:
        return original(self, [r for r in records if not (isinstance(r, Lease) and r.ended_ms)] or records[:0])

    put(watch._Batch, "changes", changes)


@mutant("followed from now on", "who goes on following is told of what happens from then on")
def _from_now(put: Put) -> None:
    original = watch.WatchHub.watch

    def follow(self: Any, *which: Any, **asked: Any) -> Any:
        return original(self, *which, **{**asked, "after_seq": 0})

    put(watch.WatchHub, "watch", follow)


@mutant(
    "told too far", "the first change of a group is said to be all of it", kinds=("net.reset_leader", "launcher.burst")
)
def _too_far(put: Put) -> None:
    def changes(self: Any, records: Any) -> Any:
        return [watch.Change(self.seq, self.at_ms, record) for record in records]

    put(watch._Batch, "changes", changes)


@mutant("waiting is no keep-alive", "a lease expires although a caller waits for it", size="crowded")
def _no_holding(put: Put) -> None:
    @contextmanager
    def holding(self: Any, lease_id: str) -> Iterator[None]:
        yield

    put(keepalive.KeepAlive, "holding", holding)


@mutant("first keep-alive only", "of a stream of keep-alives, only the first counts")
def _first_only(put: Put) -> None:
    original = lease_service.LeaseService.KeepAlive

    async def keep_alive(self: Any, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async def only_first() -> AsyncIterator[Any]:
            first = True
            async for request in request_iterator:
                yield request if first else type(request)()
                first = False

        async for response in original(self, only_first(), context):
            yield response

    put(lease_service.LeaseService, "KeepAlive", keep_alive)


@mutant("lost while it lives", "who keeps a lease alive is told that it is lost while it waits")
def _lost(put: Put) -> None:
    original = leases.lost_reason

    def lost_reason(lease: Any) -> str:
        return original(lease) or ("" if lease.slices else "WAITING")

    put(keeping, "lost_reason", lost_reason)


@mutant("pruned to the end", "old records are dropped up to the newest snapshot and beyond")
def _pruned(put: Put) -> None:
    original = committer.Committer.prune

    def prune(self: Any, up_to_seq: int) -> None:
        original(self, self.durable_seq)

    put(committer.Committer, "prune", prune)


# -- what agents write down


class _Forgetful:
    """Another's files, without some syncs."""

    def __init__(self, files: Any, *, content: bool = True, names: bool = True) -> None:
        self._real, self._content, self._names = files, content, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        self._real.write(path, data, sync=sync and self._content)

    def sync_directory(self, path: Path) -> None:
        if self._names:
            self._real.sync_directory(path)


def _writes(put: Put, **forgotten: bool) -> None:
    original = durable.write_many

    def write_many(contents: Any, *files: Any, **how: Any) -> None:
        original(contents, _Forgetful(files[0], **forgotten), **how)

    put(durable, "write_many", write_many)


@mutant("content not synced", "a reservation's name is durable before its content is", kinds=WRITES)
def _content(put: Put) -> None:
    _writes(put, content=False)


@mutant("names not synced", "the folder of reservations is not synced after they were renamed", kinds=WRITES)
def _names(put: Put) -> None:
    _writes(put, names=False)


@mutant("removal not synced", "a slice is said to be gone while its reservation may come back", kinds=WRITES)
def _removal(put: Put) -> None:
    original = checkpoint.Checkpoint.forget

    def forget(self: Any, slice_ids: Any) -> None:
        real, self._files = self._files, _Forgetful(self._files, names=False)
        try:
            original(self, slice_ids)
        finally:
            self._files = real

    put(checkpoint.Checkpoint, "forget", forget)


@mutant("told before it is written", "a reservation is acted on before it is written down", kinds=WRITES)
def _told_first(put: Put) -> None:
    async def persist(self: Any, records: Any) -> list[Any]:
        return list(records)

    put(bookkeeping.Bookkeeper, "persist", persist)


@mutant(
    "seen is taken for durable",
    "a restarted agent goes by names that its predecessor had not synced",
    kinds=("agent.crash_in_save", "launcher.burst"),
)
def _seen(put: Put) -> None:
    original = checkpoint.Checkpoint.load

    def load(self: Any) -> Any:
        real, self._files = self._files, _Forgetful(self._files, names=False)
        try:
            return original(self)
        finally:
            self._files = real

    put(checkpoint.Checkpoint, "load", load)


@mutant("half restored", "an agent that restarts reads all reservations but the last", kinds=WRITES)
def _half(put: Put) -> None:
    original = checkpoint.Checkpoint.load
    put(checkpoint.Checkpoint, "load", lambda self: original(self)[:-1])


@mutant(
    "leader kept in mind",
    "which leader was obeyed is not written down",
    kinds=("agent.crash", "coordinator.usurped", "coordinator.crash"),
)
def _in_mind(put: Put) -> None:
    def obey(self: Any, leader_epoch: int) -> None:
        self.leader_epoch = max(self.leader_epoch, leader_epoch)

    put(identity.Identity, "obey", obey)
