"""What a guarantee is used up by, kept up to date as leases come and go, is what adding it all up would give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core.books.tenancy.ranking import Part, Rank, RankedHoldings, Sums

MODELS = ("A100-40", "H100-80")
PARTS = st.lists(
    st.tuples(st.sampled_from((*MODELS, "other")), st.integers(0, 1000), st.integers(0, 1 << 50)), max_size=4
)
STEPS = st.lists(st.tuples(st.integers(0, 60), st.integers(-2, 2), st.one_of(st.none(), PARTS)), max_size=120)
"""(number of a lease, priority, what it holds from now on; None: nothing, it goes)."""


def added_up(parts: list[Part]) -> Sums:
    by_model = {
        model: (sum(p[1] for p in parts if p[0] == model), sum(p[2] for p in parts if p[0] == model))
        for model in MODELS
    }
    return without_zeros(Sums(sum(p[1] for p in parts), sum(p[2] for p in parts), by_model))


def without_zeros(sums: Sums) -> Sums:
    return sums._replace(by_model={model: row for model, row in sums.by_model.items() if any(row)})


@given(STEPS, st.integers(-3, 3), st.integers(-1, 61))
def test_what_is_kept_up_to_date_is_the_plain_sum(
    steps: list[tuple[int, int, list[Part] | None]], priority: int, arrival: int
) -> None:
    ranked = RankedHoldings(MODELS)
    plain: dict[str, tuple[Rank, list[Part]]] = {}
    for number, own_priority, parts in steps:
        lease_id = f"l-{number}"
        before = plain.get(lease_id)
        if parts is None:
            assert ranked.drop(lease_id) == (before is not None)
            plain.pop(lease_id, None)
            continue
        rank = before[0] if before is not None else (-own_priority, number)
        assert ranked.put(lease_id, rank, parts) == (before is None or before[1] != parts)
        plain[lease_id] = (rank, parts)
    in_order = sorted(plain.items(), key=lambda item: item[1][0])
    assert [(lease_id, list(parts)) for lease_id, parts in ranked] == [(i, parts) for i, (_, parts) in in_order]
    assert len(ranked) == len(plain)
    for asked in ((-priority, arrival), *(rank for rank, _ in plain.values())):
        assert without_zeros(ranked.before(asked)) == added_up(
            [p for rank, parts in plain.values() if rank < asked for p in parts]
        )
    assert without_zeros(ranked.sums()) == added_up([p for _, parts in plain.values() for p in parts])
    for lease_id in (*plain, "nobody"):
        rest = [p for other, (_, parts) in plain.items() if other != lease_id for p in parts]
        assert without_zeros(ranked.sums(but_for=lease_id)) == added_up(rest)


def test_a_long_list_takes_few_steps() -> None:
    ranked = RankedHoldings()
    for number in range(20_000):
        ranked.put(f"l-{number}", _Counted((0, number)), [("A100-40", 1, 2)])
    _Counted.compared = 0
    for number in range(0, 20_000, 100):
        assert ranked.before(_Counted((0, number)))[:2] == (number, 2 * number)
    assert _Counted.compared < 200 * 60


class _Counted(tuple[int, int]):
    """A rank that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other: object) -> bool:
        _Counted.compared += 1
        return tuple.__lt__(self, other)  # type: ignore[operator]
