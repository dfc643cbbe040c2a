"""A tenant's ceilings on priorities and on what waits: they hold for all below it, and the least counts."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.commands.queries import Explain
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.values.errors import DomainError, InvalidField, QueueFull, QuotaExceeded
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare, tenant

TREE = ("a", "a/b", "a/b/c", "a/d", "ab")


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one", 1))
    return books


def above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]


def test_no_more_priority_than_the_tenants_above_may_have(books: Books) -> None:
    declare(books, tenant("a", priority_max=5), tenant("a/b", priority_max=100))
    books.allocate(request(100, tenant="a/b", priority=5))
    books.allocate(request(100, tenant="ab", priority=1000))
    with pytest.raises(QuotaExceeded, match=r"priority 6.* tenant a and all below it is at most 5") as refused:
        books.allocate(request(100, tenant="a/b", priority=6))
    assert refused.value.subject == "tenant a"
    assert "priority 5 or less" in refused.value.hint
    said = books.ask(Explain(request(100, tenant="a/b", priority=6)))
    assert said.impossible
    assert said.missing[0].reason == "QUOTA"


def test_another_request_waits_only_below_every_ceiling(books: Books) -> None:
    declare(books, tenant("a", waiting_max=2), tenant("a/b", waiting_max=1))
    books.allocate(request(1000, tenant="a/b"))
    books.allocate(request(1000, tenant="a/b"))
    with pytest.raises(QueueFull, match=r"1 requests of tenant a/b .* at most 1 may"):
        books.allocate(request(1000, tenant="a/b"))
    waits = books.allocate(request(1000, tenant="a/d"))
    with pytest.raises(QueueFull, match=r"2 requests of tenant a and .* at most 2 may"):
        books.allocate(request(1000, tenant="a"))
    said = books.ask(Explain(request(1000, tenant="a")))
    assert "may not wait" in said.summary
    books.allocate(request(1000, tenant="ab"))
    books.do(c.Release(waits.lease_id))
    books.allocate(request(1000, tenant="a"))


def test_where_nothing_may_wait_what_fits_is_granted(books: Books) -> None:
    declare(books, tenant("a", waiting_max=0))
    assert books.allocate(request(1000, tenant="a")).holding
    with pytest.raises(QueueFull):
        books.allocate(request(1000, tenant="a"))


def test_what_was_accepted_before_a_ceiling_stays(books: Books) -> None:
    for _ in range(3):
        books.allocate(request(1000, tenant="a", priority=7))
    declare(books, tenant("a", priority_max=0, waiting_max=0))
    assert len(books.state.lines) == 2
    assert state_hash(books.replayed()) == state_hash(books.restored()) == state_hash(books.state)


def test_ceilings_are_checked_before_they_are_declared(books: Books) -> None:
    for spec in (tenant("a", priority_max=1001), tenant("a", priority_max=-1001), tenant("a", waiting_max=-1)):
        with pytest.raises(InvalidField, match="is not within"):
            declare(books, spec)


@given(
    ceilings=st.dictionaries(
        st.sampled_from(TREE),
        st.tuples(st.none() | st.integers(-2, 2), st.none() | st.integers(0, 3)),
    ),
    asked=st.lists(st.tuples(st.sampled_from(TREE), st.integers(-2, 3), st.booleans()), max_size=15),
)
def test_whatever_is_declared_no_ceiling_is_passed(
    ceilings: dict[str, tuple[int | None, int | None]], asked: list[tuple[str, int, bool]]
) -> None:
    books = Books()
    books.connect(node("one", 1))
    declare(books, *(tenant(name, priority_max=p, waiting_max=w) for name, (p, w) in ceilings.items()))
    for name, priority, releases in asked:
        priorities = [ceilings[each][0] for each in above(name) if each in ceilings]
        allowed = all(most is None or priority <= most for most in priorities)
        with contextlib.suppress(DomainError):
            books.allocate(request(1000, tenant=name, priority=priority))
            assert allowed
        if releases and books.state.leases:
            books.do(c.Release(next(iter(books.state.leases))))
            books.settle()
        for each, (_, most) in ceilings.items():
            waiting = [i for i in books.state.lines.ids() if each in above(books.state.leases[i].request.tenant)]
            assert most is None or len(waiting) <= most
            assert books.state.lines.waiting_below(each) == len(waiting)
    assert not books.state.lines.waiting_below("a/b/c/d")
    assert state_hash(books.restored()) == state_hash(books.state)
