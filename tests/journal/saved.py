"""Journals of formats as they once were, kept for ever: what they say must stay readable and mean the same.

    python -m tests.journal.saved tests/journal/data/sqlite-1.db

writes one of the current format; do it once for each new format and each release, and note what `meaning` says of it in
`MEANINGS`. With `--eventful` it is one with declarations, preemption, holds, money and much else. `busy` writes a
longer one, which the simulation plays.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.ledger.rates import ModelRate, RateCard
from aliquot.coordinator.core.books.tenancy.specs import UNLIMITED, Amount, PoolSpec, QueueSpec, Quota, TenantSpec
from aliquot.coordinator.core.evolve.snapshot import to_snapshot
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.types import Demand, DeviceSpec, EndReason, NodeSpec, RequestSpec
from aliquot.coordinator.writing.journal.snapshotter import take_snapshot
from aliquot.coordinator.writing.journal.sqlite import snapshot_folder_of
from tests.compatibility import shapes
from tests.journal.facts import GIB, Story, opened

DATA = Path(__file__).with_name("data")
MEANINGS = {
    "sqlite-1-busy-1.tar.gz": "0370ca1374239dbec1c34a78bb7acf5eecde66bda8de5f02a425148c0c9337bf",
    "sqlite-1-busy-2.tar.gz": "238ebb627d75986a85407679b0da42995cb6a6ae90f246d68ba479f8f7094301",
    "sqlite-1-eventful.db": "4a786c6b3b48c8e904774b852aeefcab2c7edf65af1bfba83d37a5d48c961e70",
    "sqlite-1.db": "f29e38d95d99895a72aa4970e406e6bfbeb1689aa16dc535142fd2395813fe24",
}
"""SHA-256 of `meaning`, by file."""
OF_THE_RELEASE = {name for name in MEANINGS if "busy" in name}
"""Written by the last release (before the first: the commit in tests/compatibility/previous)."""


def unpack(name: str, folder: Path) -> Path:
    """A copy of a saved journal in an empty folder, with its snapshots beside it."""
    path = folder / "journal.db"
    if name.endswith(".tar.gz"):
        with tarfile.open(DATA / name) as tar:
            tar.extractall(folder, filter="data")
    else:
        shutil.copy(DATA / name, path)
        shutil.copytree(DATA / f"{name}.snapshots", snapshot_folder_of(path))
    return path


def meaning(state: State) -> list[object]:
    """What a journal says that no later version may read otherwise. New fields of the books are not in it."""
    leases = [
        [
            lease.lease_id,
            lease.state.name,
            lease.request.tenant,
            lease.request.demand.share_milli,
            [
                [
                    piece.slice_id,
                    piece.state.name,
                    piece.plan.device_uuid,
                    piece.plan.share_milli,
                    piece.plan.memory_bytes,
                ]
                for piece in lease.slices
            ],
        ]
        for lease in sorted(state.leases.values(), key=lambda lease: lease.arrival)
    ]
    nodes = [[node_id, node.state.name, node.cordoned] for node_id, node in sorted(state.nodes.items())]
    return [state.seq, state.now_ms, state.leader_epoch, leases, nodes]


def eventful(path: Path) -> State:
    """A story in which an administrator declares, launchers preempt and change their minds, and money flows."""
    story = Story(opened(path))
    story.begin(1)
    devices = tuple(DeviceSpec(f"GPU-c{n}", "A100-80", 80 * GIB, index=n) for n in range(2))
    whole = Amount(2000, UNLIMITED)  # of share; memory is not bounded
    story.tell(
        c.DeclareNode(NodeSpec("n3", "node three", devices, pool="projects", agentless=True)),
        c.Apply(
            pools=((PoolSpec("projects", limit=Amount(4000, UNLIMITED)), 0),),
            tenants=(
                (TenantSpec("research", Quota(guaranteed=Amount(2000)), description="first"), 0),
                (TenantSpec("old"), 0),
            ),
            queues=((QueueSpec("night", quota=Quota(limit=whole, weight=3), ageing_ms=1000), 0),),
            rates=RateCard("EUR", (ModelRate("*", 1_500_000, 10_000),), minimum_ms=1000),
        ),
    )
    story.tell(c.Withdraw(c.Declared.TENANT, "old"))
    story.tell(c.LearnPrices(PriceTable(1, (0,), (((0, 0), (1000, 1_000_000)),))))
    for number in range(4):
        request = RequestSpec(
            Demand(share_milli=1000), tenant="batch", ttl_ms=0, preemptible=True, grace_ms=0, min_run_ms=0
        )
        story.tell(c.Allocate(f"low-{number}", request, key=f"low{number}", body_sha256=b"l" * 32))
    story.now_ms += 600_000
    for number in range(2):
        request = RequestSpec(Demand(share_milli=1000), tenant="research", priority=100, ttl_ms=0)
        story.tell(c.Allocate(f"high-{number}", request, key=f"high{number}", body_sha256=b"h" * 32), c.Admit())
    story.tell(c.Release("high-1", EndReason.CANCELLED, "changed its mind"), c.Admit())
    story.now_ms += 600_000
    story.tell(c.Tick(), c.Admit())
    story.tell(c.PostCredit("research", 5_000_000, "invoice 7"), c.ObserveUse("low-3", 1000, GIB, 60_000))
    story.tell(c.CorrectUsage("batch", "default", "A100-80", "-1000", "0", "case 3", "a lost node"))
    story.tell(c.Cordon("n3", reason="to be replaced"))
    for number in range(4):
        story.tell(c.Release(f"low-{number}", EndReason.RELEASED, ""), c.Admit())
    story.now_ms += 86_400_000
    story.tell(c.CloseBooks(86_400_000), c.Tick(), c.Admit())
    take_snapshot(path)
    story.tell(c.Release("high-0", EndReason.RELEASED, ""), c.Admit())
    story.tell(c.RemoveNode("n3"), c.StartLeading(2))
    story.lease(60)
    story.journal.close()
    return story.state


def released(state: State) -> Any:
    """Its books as plain dictionaries and lists, as far as the last release has them: newer fields are left out.

    KeyError: a record was renamed since, or stands where the last release has another.
    """
    shape = shapes.saved("snapshot")

    def plain(value: Any) -> Any:
        if isinstance(value, msgspec.Struct):
            return {name: plain(getattr(value, name)) for name in shape[f"struct {type(value).__name__}"]}
        if isinstance(value, dict):
            return {key: plain(kept) for key, kept in value.items()}
        return [plain(part) for part in value] if isinstance(value, list | tuple) else value

    return plain(to_snapshot(state))


def hash_of(state: State) -> str:
    """Of its meaning."""
    return hashlib.sha256(json.dumps(meaning(state)).encode()).hexdigest()


def write(path: Path) -> State:
    """A story with some of everything: leaders, nodes with and without agents, leases in all states, a snapshot."""
    story = Story(opened(path))
    story.begin(1)
    devices = tuple(DeviceSpec(f"GPU-b{n}", "H100-80", 80 * GIB, index=n) for n in range(4))
    story.tell(c.DeclareNode(NodeSpec("n2", "node two", devices, agentless=True)))
    for number in range(6):
        story.lease(number)
    for number, demand in enumerate(
        (
            Demand(share_milli=500, memory_bytes=20 * GIB),
            Demand(share_milli=1000, count=2, models=(("H100-80",),)),
            Demand(share_milli=1000, count=2),
            Demand(share_milli=1000, count=4, models=(("H100-80",),)),  # waits
        )
    ):
        request = RequestSpec(demand=demand, tenant="research/vision", priority=number, ttl_ms=0)
        story.tell(c.Allocate(f"big-{number}", request, key=f"big{number}", body_sha256=b"y" * 32))
    story.tell(c.Release("l-0", EndReason.RELEASED, ""))
    story.tell(c.Release("l-1", EndReason.EXPIRED, "no keep-alive"))
    take_snapshot(path)
    story.tell(c.StartLeading(2))
    story.lease(50)
    story.journal.close()
    return story.state


if __name__ == "__main__":
    tell = eventful if "--eventful" in sys.argv else write
    sys.stdout.write(f"{hash_of(tell(Path(sys.argv[1])))}\n")
