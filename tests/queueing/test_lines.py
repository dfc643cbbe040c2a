"""Which of the waiting requests are tried: of each line those for whose sake others are ending, and the next one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core.queueing.lines import LineKey, Rank, TenantLines
from aliquot.coordinator.core.values.types import Demand

KEYS = [LineKey(Demand(count=count), (), 0, 0) for count in (1, 2)]
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "serve", "unserve"]), st.integers(0, 30)), max_size=60)


def heads_of(lines: TenantLines) -> list[str]:
    """As the walk along the lines finds them."""
    found = []
    head = lines.after(None)
    while head is not None:
        found.append(head.lease_id)
        head = lines.after(head.rank)
    return found


@given(steps=STEPS)
def test_a_line_is_tried_as_far_as_it_is_served_and_one_further(steps: list[tuple[str, int]]) -> None:
    lines = TenantLines()
    waiting: dict[str, tuple[Rank, LineKey]] = {}
    served: set[str] = set()
    for what, number in steps:
        lease_id = f"l-{number}"
        if what == "add" and lease_id not in waiting:
            waiting[lease_id] = ((number * 7 % 31, number), KEYS[number % 2])
            lines.add(waiting[lease_id][0], lease_id, waiting[lease_id][1])
        elif lease_id in waiting and what == "remove":
            rank, key = waiting.pop(lease_id)
            served.discard(lease_id)
            lines.remove(rank, lease_id, key)
        elif lease_id in waiting and what in ("serve", "unserve"):
            (served.add if what == "serve" else served.discard)(lease_id)
            lines.serve(lease_id, waiting[lease_id][1], served=what == "serve")
        expected: list[tuple[Rank, str]] = []
        for key in KEYS:
            for entry in sorted((rank, i) for i, (rank, of) in waiting.items() if of == key):
                expected.append(entry)
                if entry[1] not in served:
                    break
        assert heads_of(lines) == [i for _, i in sorted(expected)]
        assert lines.size == len(waiting)
