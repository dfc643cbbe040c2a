"""Journals of formats as they once were, kept for ever: what they say must stay readable and mean the same.

    python -m tests.journal.saved tests/journal/data/sqlite-1.db

writes one of the current format; do it once for each new format, and note what `meaning` says of it in `MEANINGS`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.facts import EndReason, RequestSpec
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.types import Demand, DeviceSpec, NodeSpec
from aliquot.coordinator.journal.snapshotter import take_snapshot
from tests.journal.facts import GIB, Story, opened

DATA = Path(__file__).with_name("data")
MEANINGS = {
    "sqlite-1.db": "f29e38d95d99895a72aa4970e406e6bfbeb1689aa16dc535142fd2395813fe24",
}
"""SHA-256 of `meaning`, by file."""


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
    sys.stdout.write(f"{hash_of(write(Path(sys.argv[1])))}\n")
