"""The books that readers see follow the State's: heard of group by group, they are what the whole would give."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.ledger.folding import DAY_MS
from aliquot.coordinator.core.books.ledger.ledger import Extract
from aliquot.coordinator.core.books.ledger.rates import ModelRate, RateCard
from aliquot.coordinator.core.books.maintenance import WindowSpec
from aliquot.coordinator.core.books.tenancy.limits import capacity_kept
from aliquot.coordinator.core.books.tenancy.specs import Budget, Period, QueueSpec, TenantSpec
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing.order import fair_share
from aliquot.coordinator.core.rules.granting import guarantee_scale, whole_pool
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import DomainError, PeriodClosed
from aliquot.coordinator.reading.books import TenancyView
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.writing.commits import take_commit, whole_state
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import quota

TENANTS = ["a", "b"]
STEPS = st.one_of(
    st.tuples(st.just("connect"), st.integers(0, 2), st.integers(1, 4)),
    st.tuples(st.just("device"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("cordon"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("allocate"), st.sampled_from([250, 1000]), st.integers(1, 3), st.sampled_from(TENANTS)),
    st.tuples(st.just("confirm"), st.integers(1, 5)),
    st.tuples(st.just("release"), st.integers(1, 5)),
    st.tuples(st.just("advance"), st.sampled_from([1, 1_000, 7_200_000, DAY_MS])),
    st.tuples(st.just("tenant"), st.sampled_from(TENANTS), st.integers(0, 3), st.sampled_from([0, 1_000, 1 << 40])),
    st.tuples(st.just("queue"), st.sampled_from(["train", "root"]), st.integers(0, 2)),
    st.tuples(st.just("withdraw"), st.sampled_from(TENANTS)),
    st.tuples(st.just("rates"), st.integers(1, 3)),
    st.tuples(st.just("credit"), st.sampled_from(TENANTS), st.integers(1, 5)),
    st.tuples(st.just("correct"), st.sampled_from(TENANTS), st.integers(1, 5)),
    st.tuples(st.just("observe"), st.sampled_from(TENANTS)),
    st.tuples(st.just("close")),
    st.tuples(st.just("window"), st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.just("no window"), st.integers(0, 2)),
)


class Followed(Books):
    """A State whose usage is folded soon, and a View that hears of it group by group."""

    def __init__(self) -> None:
        super().__init__(CoreConfig(ledger_entries_max=0))
        self.now_ms = 20 * DAY_MS
        self.view = View()
        self.connect(node("0"))
        self.step(("rates", 1))
        self.step(("tenant", "a", 1, 1 << 40))
        self.hear()
        self.step(("allocate", 500, 1, "a"))
        self.step(("confirm", 1))
        self.hear()

    def hear(self) -> None:
        self.view.apply(take_commit(self.state))

    def step(self, step: tuple[object, ...]) -> None:
        with contextlib.suppress(DomainError):
            self._of_the_pool(step)
            self._of_the_office(step)

    def _of_the_pool(self, step: tuple[object, ...]) -> None:
        match step:
            case ("connect", int(number), int(devices)):
                self.connect(node(str(number), devices))
            case ("device", int(number), bool(healthy)):
                epoch = self.sessions.get(f"n-{number}", 0)
                self.do(c.ReportDevice(f"n-{number}", epoch, f"GPU-{number}-0", 0, healthy))
            case ("cordon", int(number), bool(cordoned)):
                self.do(c.Cordon(f"n-{number}", cordoned=cordoned))
            case ("allocate", int(share), int(count), str(tenant)):
                self.allocate(request(share, count=count, tenant=tenant))
            case ("confirm", int(number)) if f"l-{number:013d}" in self.state.leases:
                self.activate(self.state.leases[f"l-{number:013d}"])
            case ("release", int(number)):
                lease_id = f"l-{number:013d}"
                self.do(c.Release(lease_id))
                self.report(self.state.leases[lease_id], c.ReportStatus.GONE)
            case ("advance", int(by_ms)):
                self.advance(by_ms)

    def _of_the_office(self, step: tuple[object, ...]) -> None:
        match step:
            case ("tenant", str(name), int(guaranteed), int(budget)):
                spec = TenantSpec(
                    name, quota=quota(guaranteed), budget=Budget(Period.DAY, budget, min(budget, 10_000_000))
                )
                self.do(c.Apply(tenants=((spec, c.ANY_VERSION),)))
            case ("queue", str(name), int(guaranteed)):
                spec_of_queue = QueueSpec(name=name, parent="" if name == "root" else "root", quota=quota(guaranteed))
                self.do(c.Apply(queues=((spec_of_queue, c.ANY_VERSION),)))
            case ("withdraw", str(name)):
                self.do(c.Withdraw(c.Declared.TENANT, name))
            case ("rates", int(price)):
                self.do(c.Apply(rates=RateCard("EUR", (ModelRate("*", price * 1_000_000),))))
            case ("credit", str(name), int(number)):
                self.do(c.PostCredit(name, number, f"paid {number}"))
            case ("correct", str(name), int(number)):
                self.do(c.CorrectUsage(name, "default", "A100-40", f"-{number}", "0", f"ticket {number}"))
            case ("observe", str(name)):
                self.do(c.ObserveUse("", 1, 1, 1, tenant=name))
            case ("close",):
                self.do(c.CloseBooks(self.now_ms - self.now_ms % DAY_MS))
            case ("window", int(number), int(in_h)):
                start, end = (_clock(self.now_ms + hours * 3_600_000) for hours in (in_h, in_h + 2))
                self.do(c.DeclareMaintenance(WindowSpec(f"w{number}", start, end, node_ids=(f"n-{number}",))))
            case ("no window", int(number)):
                self.do(c.EndMaintenance(f"w{number}"))


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def extracts(view: View, now_ms: int) -> list[Extract | str]:
    found: list[Extract | str] = []
    for tenant in TENANTS:
        for from_ms in (0, now_ms - now_ms % DAY_MS):
            try:
                found.append(view.extract(tenant, from_ms, 1 << 50, now_ms))
            except PeriodClosed as error:
                found.append(str(error))
    return found


def recounted(state: State, now_ms: int) -> object:
    """What the State itself says, of what a reader is told in sums."""
    waiting: Counter[tuple[str, str]] = Counter()
    for lease_id in state.lines.ids():
        place = state.lines.place_of(lease_id)
        assert place is not None
        waiting.update([("t", place.tenant), *(("q", name) for name in state.tenancy.path(place.queue))])
    capacity = whole_pool(Known(state, CoreConfig()))
    accounts = {
        key: (
            account.share_milli,
            account.memory_bytes,
            waiting[key],
            fair_share(state.tenancy, account, capacity, now_ms),
            state.meters[key[1]].permille(now_ms) if key[0] == "t" and key[1] in state.meters else 0,
        )
        for key, account in state.tenancy.accounts.items()
    }
    return (
        accounts,
        guarantee_scale(Known(state, CoreConfig())),
        capacity_kept(state.inventory, [name for name, node in state.nodes.items() if node.counted_on]),
        set(state.holds),
        set(state.windows),
    )


def told(view: View, tenancy: TenancyView, state: State) -> object:
    """The same, as a reader is told it."""
    accounts = {
        (kind, each.spec.name): (
            each.share_milli,
            each.memory_bytes,
            each.waiting,
            each.fair_share_billionths,
            each.budget_permille,
        )
        for kind, views in (("t", tenancy.tenants), ("q", tenancy.queues))
        for each in views
    }
    # Of accounts that hold nothing, that nobody waits for and that were never declared, nobody is told.
    silent = {key: (0, 0, 0, 0, 0) for key, account in state.tenancy.accounts.items() if key not in accounts}
    faded = {key: (0, 0, 0, fair_share_of(state, key), 0) for key in silent}
    return (
        {key: value for key, value in {**accounts, **faded}.items() if key in state.tenancy.accounts},
        tenancy.guarantee_scale_millionths,
        view.totals.kept.amount,
        {hold.owner for hold in tenancy.holds},
        {each.window.spec.name for each in view.windows()},
    )


def fair_share_of(state: State, key: tuple[str, str]) -> int:
    return fair_share(state.tenancy, state.tenancy.accounts[key], whole_pool(Known(state, CoreConfig())), state.now_ms)


@pytest.mark.no_cover  # would more than double its time
@given(st.lists(STEPS, max_size=40), st.integers(1, 4))
@example([("connect", 0, 1), ("release", 1), ("advance", 7_200_000)], 4)  # forgotten in the group in which it ends
def test_books_that_are_followed_are_those_of_the_whole(steps: list[tuple[object, ...]], per_group: int) -> None:
    books = Followed()
    for number, step in enumerate(steps):
        books.step(step)
        if number % per_group == 0:
            books.hear()
    books.hear()
    now_ms = books.state.now_ms
    followed = books.view.tenancy(now_ms)
    assert told(books.view, followed, books.state) == recounted(books.state, now_ms)
    whole = View()
    whole.apply(whole_state(books.state))
    assert whole.tenancy(now_ms) == followed
    assert whole.windows() == books.view.windows()
    assert extracts(whole, now_ms) == extracts(books.view, now_ms)
