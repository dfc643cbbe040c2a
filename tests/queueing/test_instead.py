"""Who waits is told the request with the smallest change: sent as it is told, it starts at once."""

from __future__ import annotations

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.commands.outcomes import Explained
from aliquot.coordinator.core.commands.queries import Explain, ExplainLease
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.types import Demand, RequestSpec, Topology
from aliquot.coordinator.wire.leases import explanation_message, request_message
from aliquot.coordinator.wire.requests import read_request
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare, tenant

MODELS = [("A100-40", 40), ("T4", 16), ("H100-80", 80)]


def explain(books: Books, subject: RequestSpec | str) -> Explained:
    return books.ask(ExplainLease(subject) if isinstance(subject, str) else Explain(subject))


def sent(spec: RequestSpec) -> RequestSpec:
    """As it arrives when somebody sends what was told."""
    return read_request(request_message(spec), lambda name: name).spec


def starts(books: Books, found: Explained) -> Demand:
    """Ask for it: it must be granted before anything else happens."""
    assert found.instead is not None
    assert not found.fits_now
    lease = books.allocate(sent(found.instead))
    assert lease.state is LeaseState.GRANTED
    return lease.request.demand


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        ({"share_milli": 500}, {"share_milli": 400}),
        ({"share_milli": 100, "memory_bytes": 30 * GIB}, {"memory_bytes": 20 * GIB}),
        ({"share_milli": 0, "memory_bytes": 18 * GIB}, {"share_milli": 400}),
        ({"share_milli": 500, "memory_bytes": 30 * GIB}, {"share_milli": 400, "memory_bytes": 20 * GIB}),
        ({"share_milli": 100, "models": (("H100-80",),)}, {"models": (("H100-80",), ("A100-40",))}),
        ({"share_milli": 100, "vendor": "amd"}, {"vendor": "", "vendors": ("amd", "nvidia")}),
        ({"share_milli": 100, "count": 9}, {"count": 2}),
        ({"share_milli": 100, "memory_bytes": 16 * GIB, "gang_size": 3, "apart": True}, {"gang_size": 2}),
        ({"share_milli": 100, "node_selector": (("zone", "x"),)}, {"node_selector": ()}),
        ({"share_milli": 100, "node_ids": ("n-two",)}, {"node_ids": ()}),
        (
            {"share_milli": 100, "count": 2, "topology": Topology.REQUIRE_ISLAND},
            {"topology": Topology.PREFER_ISLAND},
        ),
    ],
)
def test_what_would_start(asked: dict[str, object], changed: dict[str, object]) -> None:
    """Two cards, of each of which 0.6 and half of the memory are held."""
    books = Books()
    books.connect(node("one", 2))
    for _ in range(2):
        books.activate(books.allocate(request(600, 20 * GIB)))
    books.settle()
    spec = request(**asked)  # type: ignore[arg-type]
    demand = starts(books, explain(books, spec))
    for name in set(Demand.__struct_fields__) - {"apart"}:
        assert getattr(demand, name) == changed.get(name, getattr(spec.demand, name)), name


def test_for_a_waiting_lease_nothing_else_of_it_changes() -> None:
    books = Books()
    books.connect(node("one"))
    books.settle()
    for _ in range(4):
        books.activate(books.allocate(request(750, 10 * GIB)))
    waits = books.allocate(request(1000, tenant="b", name="mine", labels=(("port", "8888"),), time_limit_ms=60_000))
    books.settle()
    found = explain(books, waits.lease_id)
    assert starts(books, found).share_milli == 250
    assert found.instead is not None
    assert sent(found.instead).labels == (("port", "8888"),)
    assert (found.instead.tenant, found.instead.name, found.instead.time_limit_ms) == ("b", "mine", 60_000)
    told = explanation_message(found, books.read(), None)
    assert told.instead.spec.share_milli == 250


def test_nothing_is_told_that_others_who_wait_would_get_first() -> None:
    books = Books()
    books.connect(node("one", 1))
    holds = books.activate(books.allocate(request(1000)))
    first = books.allocate(request(500))
    waits = books.allocate(request(1000, tenant="b"))
    assert explain(books, waits.lease_id).instead is None, "all is held"
    books.do(c.Release(holds.lease_id))
    books.report(holds, c.ReportStatus.GONE)
    assert explain(books, waits.lease_id).instead is None, "what is free was not offered along the line yet"
    books.settle()
    assert books.again(first).state is LeaseState.GRANTED
    assert starts(books, explain(books, waits.lease_id)).share_milli == 500


def test_nothing_is_told_that_a_limit_forbids() -> None:
    books = Books()
    books.connect(node("one", 1))
    declare(books, tenant("a", limit=1))
    for _ in range(2):
        books.activate(books.allocate(request(350)))
    books.settle()
    assert explain(books, request(500, tenant="b")).instead is not None
    assert explain(books, request(500)).instead is None


def test_an_elastic_request_keeps_its_bounds() -> None:
    books = Books()
    books.connect(node("one"))
    books.settle()
    assert explain(books, request(1000, gang_size=6)).instead is not None
    assert explain(books, request(1000, gang_size=6, min_count=5)).instead is None


DEMANDS = st.fixed_dictionaries(
    {
        "share_milli": st.sampled_from([0, 100, 333, 500, 1000]),
        "memory_bytes": st.sampled_from([0, 0, 1, 3 * GIB, 17 * GIB + 5, 39 * GIB, 200 * GIB]),
        "count": st.sampled_from([1, 1, 1, 2, 3, 9]),
        "gang_size": st.sampled_from([1, 1, 1, 2, 5]),
        "models": st.sampled_from([(), (), (("T4",),), (("H100-80",), ("A100-40",)), (("B200",),)]),
        "vendor": st.sampled_from(["", "", "amd"]),
        "node_ids": st.sampled_from([(), (), ("n-0",)]),
        "topology": st.sampled_from([Topology.PREFER_ISLAND, Topology.REQUIRE_ISLAND]),
        "tenant": st.sampled_from(["a", "b"]),
    }
).filter(lambda each: each["share_milli"] or each["memory_bytes"])


@given(
    nodes=st.lists(st.tuples(st.sampled_from(MODELS), st.integers(1, 3)), min_size=1, max_size=3),
    held=st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 40)), max_size=8),
    asked=DEMANDS,
    waiting=st.booleans(),
)
def test_whatever_is_told_starts(
    nodes: list[tuple[tuple[str, int], int]], held: list[tuple[int, int]], asked: dict[str, object], waiting: bool
) -> None:
    books = Books()
    for number, ((model, memory_gib), devices) in enumerate(nodes):
        books.connect(node(str(number), devices, model=model, memory_gib=memory_gib))
    books.settle()
    for share_milli, memory_gib in held:
        try:
            books.allocate(request(share_milli, memory_gib * GIB), no_queue=True)
        except DomainError:
            continue
    books.settle()
    spec = request(**asked)  # type: ignore[arg-type]
    subject: RequestSpec | str = spec
    if waiting:
        try:
            subject = books.allocate(spec).lease_id
        except DomainError:
            return
        books.settle()
    found = explain(books, subject)
    target(float(found.instead is not None))
    if found.instead is not None:
        starts(books, found)
