"""Nodes change hands between projects: when they should, never when they should not, and not back and forth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.tenancy.loans import NodeLent
from aliquot.coordinator.core.books.tenancy.specs import Amount, Balancing, PoolSpec
from aliquot.coordinator.core.commands.outcomes import BalanceView
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.rules.lending import Project, ProjectNode, plan
from aliquot.coordinator.core.values.errors import InvalidField, TenantInUse
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare, tenant

SPEC = Balancing(label="project", keep_nodes=3)
REST_MS = SPEC.rest_ms


def busy(books: Books, name: str, devices: int) -> list[Lease]:
    """Whole devices of the project's nodes, filled one node after another."""
    nodes = sorted(node_id for node_id, n in books.state.nodes.items() if dict(n.spec.labels)["project"] == name)
    found = []
    for number in range(devices):
        where = (nodes[number // 2],)
        spec = request(1000, tenant=name, node_selector=(("project", name),), node_ids=where)
        found.append(books.activate(books.allocate(spec)))
    return found


def two_projects(*, auto: bool = False, nodes: int = 5) -> Books:
    books = Books()
    for name in ("a", "b"):
        for number in range(nodes):
            books.connect(node(f"{name}{number}", 2, labels=(("project", name),)))
    spec = Balancing(label="project", keep_nodes=3, auto=auto)
    own = 2 * nodes
    declare(books, PoolSpec("default", balancing=spec), tenant("a", guaranteed=own), tenant("b", guaranteed=own))
    return books


def asked(books: Books, *home: str, carry_out: bool = False) -> BalanceView:
    view = books.do(c.Balance("default", carry_out, home)).outcome
    assert isinstance(view, BalanceView)
    return view


def labels(books: Books, name: str) -> list[str]:
    return [n.spec.name for n in books.state.nodes.values() if dict(n.spec.labels)["project"] == name]


def test_a_dry_run_says_what_it_would_do_and_changes_nothing() -> None:
    books = two_projects()
    busy(books, "a", 6)
    before = state_hash(books.state)
    view = asked(books)
    (move,) = view.moves
    assert (move.lender, move.borrower, move.reason) == ("b", "a", "a uses 60 %, b 0 %")
    assert [(p.name, p.use_permille) for p in view.projects] == [("a", 600), ("b", 0)]
    assert state_hash(books.state) == before


def test_the_node_and_the_guarantee_it_can_carry_change_hands() -> None:
    books = two_projects()
    busy(books, "a", 6)
    (move,) = asked(books, carry_out=True).moves
    assert len(labels(books, "a")) == 6
    assert len(labels(books, "b")) == 4
    account = books.state.tenancy.account
    assert account("t", "a").quota.guaranteed == Amount(12_000)
    assert account("t", "b").quota.guaranteed == Amount(8_000)
    waiting = books.allocate(request(1000, count=2, tenant="a", node_selector=(("project", "a"),)))
    assert waiting.state is LeaseState.GRANTED
    assert [(m.node_id, m.lender, m.borrower) for m in asked(books).log] == [(move.node_id, "b", "a")]
    assert state_hash(books.replayed()) == state_hash(books.state)
    assert state_hash(books.restored()) == state_hash(books.state)


def test_everybody_keeps_enough() -> None:
    books = two_projects(nodes=3)
    busy(books, "a", 6)
    view = asked(books)
    assert view.moves == ()
    assert view.notes == ("b has 3 nodes and keeps at least 3",)


def test_a_small_difference_moves_nothing_until_somebody_has_waited() -> None:
    books = two_projects()
    busy(books, "a", 10)
    busy(books, "b", 8)
    assert asked(books).moves == ()
    books.allocate(request(1000, tenant="a", node_selector=(("project", "a"),)))
    books.advance(SPEC.waited_ms - 1)
    assert asked(books).moves == ()
    books.advance(1)
    (move,) = asked(books).moves
    assert (move.lender, move.borrower, move.node_id) == ("b", "a", "n-b4")
    assert move.reason.startswith("somebody of a has waited for 300 s")


def test_who_waits_for_its_limit_is_not_helped_by_a_node() -> None:
    books = two_projects()
    declare(books, tenant("a", guaranteed=10, limit=10))
    busy(books, "a", 10)
    busy(books, "b", 8)
    books.allocate(request(1000, tenant="a", node_selector=(("project", "a"),)))
    books.advance(SPEC.waited_ms)
    assert asked(books).moves == ()


def test_a_pool_may_balance_by_itself_and_does_not_go_back_and_forth() -> None:
    books = two_projects(auto=True)
    leases = busy(books, "a", 6)
    for _ in range(24):
        books.advance(SPEC.every_ms)
    moves = [fact for fact in books.facts if isinstance(fact, NodeLent)]
    assert [fact.borrower for fact in moves] == ["a", "a"], "60 % of 5 nodes is 43 % of 7, and b keeps 3"
    assert len(labels(books, "b")) == 3
    for lease in leases:
        books.do(c.Release(lease.lease_id))
        for piece in books.again(lease).holding:
            said = c.SliceReport(piece.slice_id, piece.lease_epoch, c.ReportStatus.GONE)
            books.do(c.ReportSlices(piece.plan.node_id, books.sessions[piece.plan.node_id], (said,)))
    for _ in range(24):
        books.advance(SPEC.every_ms)
    assert len(labels(books, "a")) == len(labels(books, "b")) == 5, "when nobody needs them they go home"
    assert not books.state.tenancy.loans
    assert books.state.tenancy.account("t", "b").quota.guaranteed == Amount(10_000)


def test_a_home_that_needs_its_node_has_it_back_and_what_runs_there_borrows() -> None:
    books = two_projects()
    busy(books, "a", 10)
    (move,) = asked(books, carry_out=True).moves
    lent = books.state.node(move.node_id).spec.name
    over = [
        books.activate(books.allocate(request(1000, tenant="a", node_selector=(("project", "a"),)))) for _ in range(2)
    ]
    assert {piece.plan.node_id for lease in over for piece in lease.slices} == {move.node_id}
    books.advance(REST_MS)
    busy(books, "b", 8)
    waiting = books.allocate(request(1000, count=2, tenant="b", node_selector=(("project", "b"),)))
    books.advance(SPEC.waited_ms)
    (back,) = asked(books, carry_out=True).moves
    assert (back.node_id, back.borrower) == (move.node_id, "b")
    assert lent in labels(books, "b")
    books.settle()
    assert {lease.lease_id for lease in over if books.again(lease).ending} == {lease.lease_id for lease in over}
    for lease in over:
        books.report(lease, c.ReportStatus.GONE)
    books.settle()
    assert books.again(waiting).state is LeaseState.GRANTED, "its guarantee is owed there again"


def test_an_administrator_sends_a_node_home() -> None:
    books = two_projects()
    busy(books, "a", 6)
    (move,) = asked(books, carry_out=True).moves
    with pytest.raises(TenantInUse):
        books.do(c.Withdraw(c.Declared.TENANT, "b"))
    with pytest.raises(InvalidField, match="has lent"):
        declare(books, tenant("b", guaranteed=1))
    asked(books, move.node_id, carry_out=True)
    assert not books.state.tenancy.loans
    with pytest.raises(InvalidField, match="not lent"):
        asked(books, "n-a0")
    with pytest.raises(InvalidField, match="does not say"):
        books.do(c.Balance("another"))


def test_a_lent_node_stays_lent_when_its_agent_registers_again_and_is_forgotten_with_it() -> None:
    books = two_projects()
    busy(books, "a", 6)
    (move,) = asked(books, carry_out=True).moves
    spec = next(n.spec for n in books.state.nodes.values() if n.spec.node_id == move.node_id)
    books.connect(node(spec.name, 2, labels=(("project", "b"),)))
    assert spec.name in labels(books, "a")
    books.do(c.NodeSilent(move.node_id, books.sessions[move.node_id], lost=True))
    books.do(c.RemoveNode(move.node_id, force=True))
    assert books.state.tenancy.account("t", "b").quota.guaranteed == Amount(10_000)
    assert state_hash(books.replayed()) == state_hash(books.state)


def test_what_cannot_be_declared() -> None:
    for wrong in (
        Balancing(auto=True),
        Balancing(label="bad label!"),
        Balancing(label="project", threshold_permille=5000),
        Balancing(label="project", keep_nodes=0),
        Balancing(label="project", rest_ms=-1),
    ):
        with pytest.raises(InvalidField):
            declare(Books(), PoolSpec("default", balancing=wrong))


@given(
    uses=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 100)), min_size=2, max_size=4),
    threshold=st.integers(50, 500),
    waits=st.integers(-1, 3),
)
def test_moves_settle_and_nobody_falls_below_what_it_keeps(
    uses: list[tuple[int, int]], threshold: int, waits: int
) -> None:
    """However use is spread, the moves come to an end while nothing else changes, and enough stays with everybody."""
    spec = Balancing(label="project", threshold_permille=threshold)
    nodes: dict[str, list[ProjectNode]] = {}
    for number, (count, percent) in enumerate(uses):
        used = count * 8000 * percent // 100
        mine = []
        for index in range(count):
            here = min(8000, used)
            used -= here
            mine.append(ProjectNode(f"n{number}-{index}", 8000, here, here == 0, "", 0))
        nodes[f"p{number}"] = mine
    now_ms = 10**9
    for _ in range(60):
        projects = [Project(n, tuple(mine), 600_000 * (n == f"p{waits}")) for n, mine in nodes.items()]
        moves = plan(projects, spec, now_ms).moves
        if not moves:
            break
        (move,) = moves
        piece = next(node for node in nodes[move.lender] if node.node_id == move.node_id)
        assert now_ms - piece.moved_ms >= spec.rest_ms
        if move.home == move.lender:
            assert len(nodes[move.lender]) > spec.keep_nodes
            assert piece.free
        nodes[move.lender].remove(piece)
        home = "" if move.borrower == move.home else move.home
        nodes[move.borrower].append(piece._replace(home=home, moved_ms=now_ms))
        now_ms += spec.rest_ms
    else:
        raise AssertionError("it goes back and forth")
