"""Mistakes about idleness: what is not seen taken for it, ends that nobody was told of, loans that are not returned."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.coordinator.core.use import decide as using
from aliquot.coordinator.core.use import lending, windows
from aliquot.coordinator.core.use.facts import ShareRecalled
from aliquot.coordinator.core.use.policy import policy_of
from aliquot.coordinator.core.use.records import UseState
from aliquot.coordinator.core.use.windows import Span
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
