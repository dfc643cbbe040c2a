"""Mistakes about idleness: what is not seen taken for it, ends that nobody was told of, loans that are not returned.
Mistakes about time limits that are made longer. Energy that is counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.agent.core import energy
from aliquot.coordinator.core import tick
from aliquot.coordinator.core.books.use import ShareRecalled, UseState
from aliquot.coordinator.core.deciding import borrowing as lending
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding import extending
from aliquot.coordinator.core.deciding import use as using
from aliquot.coordinator.core.known import use_windows as windows
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.known.use_windows import Span
from aliquot.coordinator.core.rules.use import policy_of
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.timers import Due, Timers
from aliquot.coordinator.core.values.types import EndReason
from aliquot.coordinator.reading.usage import Risen
from tests.simulation.mutant import Put, mutant

_LENT = """
pool 1 of 1
start
wait 30
queue default idle=lend after=900
allocate lender 0.9,10Gi ttl=86400
work lender 0
wait 1000
allocate borrower 0.5,10Gi opportunistic=yes ttl=86400
work borrower 30
wait 30
"""
_ENDING = """
pool 1 of 1
start
wait 30
queue default idle=release after=1800 warn=900
allocate job 0.5 ttl=86400
work job 0
wait 2100
"""


@mutant(
    "idle by a telemetry gap",
    "a lease that nobody sees counts as one that does nothing",
    scene="""
pool 1 of 1
start
wait 30
allocate job 0.5 ttl=86400
work job 50
wait 100
cut node-0000
wait 900
""",
)
def _gap(put: Put) -> None:
    original = windows.classify

    def classify(slice_ids: Sequence[str], spans: Sequence[Span], length_ms: int) -> UseState:
        found = original(slice_ids, spans, length_ms)
        return UseState.IDLE if found is UseState.UNKNOWN else found

    put(using, "classify", classify)


@mutant("ended without a warning", "an idle lease ends although its warnings reached nobody", scene=_ENDING)
def _untold(put: Put) -> None:
    put(using, "told_of_all", lambda policy, lease, now_ms: True)


@mutant(
    "ended although exempt",
    "who asked to be left alone is warned all the same",
    scene=_ENDING.replace("wait 2100", "exempt job 80000\nwait 2100"),
)
def _exempted(put: Put) -> None:
    put(
        using,
        "_consequences",
        lambda state, lease, idle_ms, now_ms: (
            [using._warning(lease, policy_of(state.tenancy, "dev", ""), idle_ms, now_ms)]
            if idle_ms > 900_000 and not lease.use.warned
            else []
        ),
    )


@mutant(
    "lent share not returned",
    "who uses an idle lease's share stays when that wakes up",
    scene=_LENT + "work lender 40\nwait 30\n",
)
def _kept(put: Put) -> None:
    put(
        using,
        "recall",
        lambda state, lease, reason, now_ms: [ShareRecalled(now_ms, lease.lease_id, reason)] if lease.use.lent else [],
    )


@mutant(
    "lent twice",
    "one share is lent to as many as ask for it",
    scene=_LENT + "allocate other 0.5,10Gi opportunistic=yes ttl=86400\nwait 5\n",
)
def _twice(put: Put) -> None:
    put(lending, "_left", lambda state, piece: (piece.plan.share_milli, piece.plan.memory_bytes))


@mutant(
    "extended over a promise",
    "a time limit is made longer although somebody's start is reserved for when it was to end",
    scene="""
pool 1 of 1
start
wait 30
allocate job 1 limit=900 ttl=86400
allocate waits 1 ttl=86400
wait 400
extend job 3000
wait 10
""",
)
def _over_promises(put: Put) -> None:
    put(extending, "_look_at_promises", lambda state, lease, wanted_ms: None)


@mutant(
    "extended for nothing",
    "a lease that was extended ends when it would have ended before",
    scene="""
pool 1 of 1
start
wait 30
allocate job 1 limit=60 ttl=86400
wait 10
extend job 600
wait 120
""",
)
def _old_end(put: Put) -> None:
    drop = Timers.drop

    def kept(self: Timers, due_ms: int, kind: Due, subject: str) -> None:
        if kind is not Due.TIME_LIMIT:
            drop(self, due_ms, kind, subject)

    def over(state: Known, lease_id: str, now_ms: int) -> list[Fact]:
        lease = state.leases.get(lease_id)
        if lease is None or lease.ended or lease.ending or lease.waiting:
            return []
        return lifecycle.end(state, lease, EndReason.TIME_LIMIT, now_ms)

    put(Timers, "drop", kept)
    put(tick, "_LOOK", {**tick._LOOK, Due.TIME_LIMIT: over})


_DRAWING = """
pool 1 of 1
start
wait 30
allocate one 0.5,10Gi ttl=86400
allocate two 0.5,10Gi ttl=86400
work one 50
work two 50
wait 900
release one
release two
wait 30
"""


@mutant("energy for each", "each of a card's leases is said to have drawn all of what the card has", scene=_DRAWING)
def _for_each(put: Put) -> None:
    put(energy, "divide", lambda drawn_mj, idle_mj, parts, others_milli: dict.fromkeys(parts, drawn_mj))


@mutant("summed up anew", "what an agent says of a lease is added as often as it is said", scene=_DRAWING)
def _anew(put: Put) -> None:
    put(Risen, "by", lambda self, lease, slice_id, *sums: sums)
