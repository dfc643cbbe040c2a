"""Your guarantee is there when you need it: within a minute of asking, whoever has borrowed it, whatever they say."""

from __future__ import annotations

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.errors import DomainError
from aliquot.coordinator.core.leases import LeaseState, SliceState
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare, tenant

STEP_MS = 5_000


def gone_at_their_deadlines(books: Books) -> None:
    """Agents as they are: a victim's processes are gone when its grace is over, and not a moment earlier."""
    for lease in list(books.state.leases.values()):
        for piece in lease.holding:
            if piece.state is SliceState.PREEMPTING and piece.deadline_ms <= books.now_ms:
                books.report(lease, c.ReportStatus.GONE)
                break
            if piece.state is SliceState.GRANTED:
                books.report(lease, c.ReportStatus.ACTIVE)
                break
    books.settle()


@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    borrowers=st.lists(
        st.tuples(
            st.sampled_from(["guest", "other", "third"]),
            st.sampled_from([250, 500, 1000]),
            st.sampled_from([1, 1, 2, 4]),
            st.integers(-5, 1000),
            st.sampled_from([0, 10_000, 10**8]),
            st.sampled_from([1_000, 30_000, 10**8]),
            st.booleans(),
        ),
        min_size=4,
        max_size=30,
    ),
    wanted=st.integers(1, 8),
    pause_ms=st.integers(0, 30_000),
)
def test_an_owner_has_its_guarantee_within_a_minute(
    borrowers: list[tuple[str, int, int, int, int, int, bool]], wanted: int, pause_ms: int
) -> None:
    books = Books()
    for name in ("one", "two"):
        books.connect(node(name, 4))
    declare(books, tenant("owner", wanted), tenant("guest", 0, 8))
    books.settle()
    for who, share, count, priority, min_run_ms, grace_ms, preemptible in borrowers:
        try:
            books.allocate(
                request(
                    share,
                    count=count,
                    tenant=who,
                    priority=priority,
                    min_run_ms=min_run_ms,
                    grace_ms=grace_ms,
                    preemptible=preemptible,
                )
            )
        except DomainError as error:
            assert error.reason
        books.settle()
    gone_at_their_deadlines(books)
    books.advance(pause_ms)
    asked_ms = books.now_ms
    leases = [books.allocate(request(1000, tenant="owner")) for _ in range(wanted)]
    books.settle()
    while books.now_ms < asked_ms + 60_000:
        books.advance(STEP_MS)
        gone_at_their_deadlines(books)
    for lease in leases:
        assert books.again(lease).state is not LeaseState.QUEUED, "its guarantee was not there"
