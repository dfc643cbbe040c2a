"""Requests that a MIG instance serves as well as an undivided card, on the core itself: limits, charges, victims, cuts.
All invariants are checked after every command.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aliquot.common.tiers import Tier
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.specs import UNLIMITED, Amount, ModelQuota, QueueSpec, Quota, TenantSpec
from aliquot.coordinator.core.commands.queries import Explain, Fits
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import QuotaExceeded
from aliquot.coordinator.core.values.types import NodeSpec
from tests.core.harness import GIB, Books, node, request
from tests.enforce.test_cut_decisions import answer, ask, card, node_of, orders, why
from tests.tenancy.declaring import declare

CONFIG = CoreConfig(policy="binpack")


def instances(name: str, *parts: tuple[str, int]) -> NodeSpec:
    """A node with a card that is cut so, and stays so."""
    return replace(node_of(name, card(name, *parts)), cards=())


def either(books: Books, share_milli: int = 250, memory_gib: int = 10, **more: object) -> Lease:
    wanted = {"or_mig": True, "ttl_ms": 0} | more
    return books.allocate(request(share_milli, memory_gib * GIB, **wanted))  # type: ignore[arg-type]


def held(books: Books, lease: Lease) -> tuple[str, int, int]:
    """The node, and what is held there."""
    (piece,) = books.again(lease).holding
    return piece.plan.node_id, piece.plan.share_milli, piece.plan.memory_bytes // GIB


def both(*, undivided: int = 1) -> Books:
    """A card that is cut into two instances and a half, and undivided ones."""
    books = Books(CONFIG)
    books.connect(instances("mig", ("2g.10gb", 0), ("2g.10gb", 2), ("3g.20gb", 4)))
    books.connect(node("whole", undivided))
    books.settle()
    return books


def test_both_are_taken_before_anybody_waits_and_each_is_charged_as_what_it_is() -> None:
    books = both()
    leases = [either(books) for _ in range(7)]
    places = sorted(held(books, lease) for lease in leases if books.again(lease).holding)
    assert places == [("n-mig", 285, 10)] * 2 + [("n-whole", 250, 10)] * 4
    assert books.again(leases[-1]).waiting, "the larger instance is not for it"
    assert books.state.tenancy.account("t", "a").share_milli == 2 * 285 + 4 * 250
    (by_instance,) = (lease for lease in leases[:1] if held(books, lease)[0] == "n-mig")
    assert "served by a 2g.10gb, and charged for all of it" in books.again(by_instance).note
    said = why(books, leases[-1])
    assert "it may be served as well by a 2g.10gb of A100-40, and then charged for all of that: 0.285" in said
    books.do(c.Release(by_instance.lease_id))
    books.report(by_instance, c.ReportStatus.GONE)
    books.settle()
    assert held(books, leases[-1]) == ("n-mig", 285, 10)


def test_what_an_instance_has_beyond_a_limit_is_asked_of_an_undivided_card() -> None:
    books = both()
    declare(books, TenantSpec(name="a", quota=Quota(limit=Amount(540, UNLIMITED))))
    first, second, third = (either(books) for _ in range(3))
    assert held(books, first) == ("n-mig", 285, 10)
    assert held(books, second) == ("n-whole", 250, 10), "0.285 more would be above the limit"
    assert books.again(third).waiting
    assert books.state.tenancy.account("t", "a").share_milli == 535
    with pytest.raises(QuotaExceeded):
        either(books, 600, 10)


def test_what_an_undivided_card_has_beyond_a_limit_is_asked_of_an_instance() -> None:
    """By memory alone an undivided card's share goes with it, which may be more than the instance's."""
    books = Books(CoreConfig(policy="spread"))
    books.connect(instances("mig", ("1g.5gb", 0)))
    books.connect(node("whole", 1, memory_gib=24))
    books.settle()
    declare(books, TenantSpec(name="a", quota=Quota(limit=Amount(150, UNLIMITED))))
    lease = either(books, 0, 5)
    assert held(books, lease) == ("n-mig", 142, 5)
    assert books.again(either(books, 0, 5)).waiting


def test_where_there_are_only_instances_a_limit_below_them_refuses_at_once() -> None:
    books = Books(CONFIG)
    books.connect(instances("mig", ("2g.10gb", 0)))
    declare(books, TenantSpec(name="a", quota=Quota(limit=Amount(260, UNLIMITED))))
    with pytest.raises(QuotaExceeded):
        either(books)
    books.connect(node("whole", 1))
    assert held(books, either(books)) == ("n-whole", 250, 10)


def test_a_limit_on_a_model_sends_it_to_the_other_model_whichever_way() -> None:
    books = both()
    books.connect(node("b", 1, model="A10", memory_gib=24))
    declare(books, TenantSpec(name="a", quota=Quota(models=(ModelQuota("A100-40", limit=Amount(0, UNLIMITED)),))))
    assert held(books, either(books))[0] == "n-b"


def test_what_could_fit_is_told_of_both_and_granted_where_it_is_put() -> None:
    books = both()
    spec = request(250, 10 * GIB, or_mig=True, ttl_ms=0)
    fits = books.ask(Fits(spec, ("n-mig", "n-whole")))
    assert [(fit.score > 0, fit.members) for fit in fits] == [(True, 2), (True, 4)]
    plain = books.ask(Fits(request(250, 10 * GIB), ("n-mig", "n-whole")))
    assert [fit.score > 0 for fit in plain] == [False, True]
    books.do(c.GrantOn("l-on", spec, (c.MemberPlace("n-mig"),)))
    assert held(books, books.state.leases["l-on"]) == ("n-mig", 285, 10)
    assert "served by a 2g.10gb, and charged for all of it" in books.state.leases["l-on"].note
    explained = books.ask(Explain(spec))
    assert explained.fits_now


def test_whoever_holds_least_gives_way_whichever_it_is_on() -> None:
    books = Books(CONFIG)
    declare(books, QueueSpec(name="a", preempts=True))
    books.connect(instances("mig", ("2g.10gb", 0)))
    books.connect(node("whole", 1))
    books.settle()
    whole = books.activate(books.allocate(request(1000, ttl_ms=0)))
    low = books.activate(either(books, preemptible=True))
    assert held(books, low)[0] == "n-mig"
    high = either(books, 200, 8, priority=100)
    books.settle()
    assert books.again(low).ending
    assert not books.again(whole).ending
    books.report(low, c.ReportStatus.GONE)
    books.settle()
    assert held(books, high) == ("n-mig", 285, 10)


def test_a_card_is_cut_only_where_neither_has_room() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1", ("2g.10gb", 0))))
    books.connect(node("whole", 1))
    books.settle()
    for _ in range(5):
        either(books)
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    assert not orders(books)
    last = either(books)
    assert books.again(last).waiting
    assert "when it has waited" in why(books, last)
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    (cut,) = orders(books)
    assert sorted(part.profile for part in cut.parts) == ["2g.10gb", "2g.10gb"]
    answer(books, "a", cut)
    assert held(books, last) == ("n-a", 285, 10)


def test_by_name_it_goes_on_being_an_instance_alone_and_by_tier() -> None:
    books = both()
    assert held(books, ask(books, "2g.10gb"))[0] == "n-mig"
    assert held(books, either(books, min_tier=Tier.MIG))[0] == "n-mig"
    assert books.again(either(books, min_tier=Tier.MIG)).waiting
