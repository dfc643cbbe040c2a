"""Mistakes about what people ask for: elastic leases, moves, limits, budgets, maintenance, prices, payments."""

from __future__ import annotations

from typing import Any

import msgspec

from aliquot.coordinator.agents import desired
from aliquot.coordinator.core.books import elastic
from aliquot.coordinator.core.books.ledger import folding
from aliquot.coordinator.core.books.ledger import ledger as books
from aliquot.coordinator.core.books.ledger.meters import Meter
from aliquot.coordinator.core.books.ledger.rates import PriceHistory
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.books.tenancy import limits
from aliquot.coordinator.core.books.tenancy import tenancy as tenancy_books
from aliquot.coordinator.core.books.tenancy.specs import Period
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.deciding import elastic as resizing
from aliquot.coordinator.core.deciding import ending, moving
from aliquot.coordinator.core.deciding import ledger as bookkeeping
from aliquot.coordinator.core.deciding import maintenance as maintaining
from aliquot.coordinator.core.placement import move_budget as budget
from aliquot.coordinator.core.queueing import lines
from aliquot.coordinator.core.rules import closing
from aliquot.coordinator.core.rules.preemption import displacement, victims
from tests.simulation.mutant import Put, decide_by, mutant

MONEY = ("money.rates", "money.credit", "money.invoice", "money.close_books")

# -- elastic leases


@mutant("growth without rest", "a lease that may grow does so, whether it has come to rest or not")
def _restless(put: Put) -> None:
    put(resizing, "grows_at", lambda lease, at_ms: True)


@mutant("member number taken", "what an elastic lease gains gets the number of a member that it has")
def _same_number(put: Put) -> None:
    put(resizing, "free_numbers", lambda lease, count: list(range(count)))


@mutant(
    "fewer than the least",
    "an elastic lease goes on with what is left, however little",
    kinds=("device.lost", "device.xid_fatal", "agent.state_lost", "admin.drain"),
)
def _too_few(put: Put) -> None:
    put(resizing, "bounds_of", lambda request: elastic.bounds_of(request)._replace(least=1))


@mutant("notice cut short", "an agent is told at once to stop what an elastic lease gives back", size="crowded")
def _no_notice(put: Put) -> None:
    original = desired.wish_of
    put(desired, "wish_of", lambda piece: original(msgspec.structs.replace(piece, shed=False)))


@mutant(
    "everything is moved",
    "leases that nobody marked movable are moved as well",
    scene="""
pool 4 of 1
start
wait 30
allocate job 1.0 gang=2 ttl=86400
maintain node-0001 20
wait 60
""",
)
def _moved(put: Put) -> None:
    original = moving._may_move

    def may_move(state: Any, lease: Any) -> bool:
        request = msgspec.structs.replace(lease.request, movable=True)
        return original(state, msgspec.structs.replace(lease, request=request))

    put(moving, "_may_move", may_move)


@mutant(
    "placed anywhere",
    "what was put on a place goes back to its queue, and elsewhere from there",
    scene="""
pool 2 of 1
start
place job 1 node-0000 preemptible=yes
drain node-0000
wait 90
""",
)
def _placed_anywhere(put: Put) -> None:
    def concluded(lease: Any, *how: Any, **more: Any) -> Any:
        unplaced = msgspec.structs.replace(lease, request=msgspec.structs.replace(lease.request, placed=False))
        return original(unplaced, *how, **more)

    original = ending._concluded
    put(ending, "_concluded", concluded)


@mutant(
    "gang moved in part",
    "of a gang that is moved one member is told to go, and the others run on",
    scene="""
pool 4 of 1
start
wait 30
allocate job 1.0 gang=2 movable=yes ttl=86400
maintain node-0001 20
wait 60
""",
)
def _in_part(put: Put) -> None:
    original = moving.move

    def move(state: Any, planned: Any, why: str, now_ms: int) -> list[Any] | None:
        facts: list[Any] | None = original(state, planned, why, now_ms)
        if facts is None or len(planned.target.members) < 2:
            return facts
        return [msgspec.structs.replace(facts[0], slice_ids=facts[0].slice_ids[:1]), *facts[1:]]

    put(moving, "move", move)


@mutant(
    "member given up first",
    "an elastic lease that is moved in part gives a member up before it has another",
    scene="""
pool 3 of 1
start
wait 30
allocate job 1.0 gang=2 least=1 most=2 movable=yes ttl=86400
wait 60
maintain node-0001 20
wait 60
""",
)
def _given_up_first(put: Put) -> None:
    original = resizing.replace_members
    put(resizing, "replace_members", lambda *args: list(reversed(original(*args) or ())) or None)


@mutant(
    "slowdown by arrival",
    "a queue that orders by slowdown serves its equal requests as they came, however long they run",
    scene="""
pool 1 of 1
start
wait 30
queue default policy=slowdown
allocate running 1.0 ttl=86400 limit=7200
allocate long 1.0 ttl=86400 limit=7200 until=queued
allocate short 1.0 ttl=86400 limit=60 until=queued
wait 30
release running
wait 60
""",
)
def _by_arrival(put: Put) -> None:
    put(lines, "slack_ms", lambda queue, request: 0)


@mutant(
    "moves for nothing",
    "leases are moved to make room though too few have started",
    scene="""
pool 2 of 2
start
wait 30
allocate whole 2 ttl=86400
allocate one 1.0 ttl=86400 movable=yes
allocate beside 1.0 ttl=86400
release whole
allocate two 1.0 ttl=86400 movable=yes
release beside
allocate large 2 ttl=86400 until=queued
wait 400
""",
)
def _for_nothing(put: Put) -> None:
    put(budget.MoveBudget, "available", property(lambda self: 8))


# -- limits and budgets


@mutant("guarantee forgotten", "what a guarantee covers is taken as well", size="crowded", kinds=("admin.quota",))
def _unprotected(put: Put) -> None:
    put(victims, "is_protected", lambda state, lease, scale: False)


@mutant("nobody is safe", "leases that are not preemptible are ended for a higher priority as well", size="crowded")
def _unsafe(put: Put) -> None:
    original = victims.Eligibility._decide

    def decide(self: Any, lease: Any) -> int:
        request = msgspec.structs.replace(lease.request, preemptible=True)
        return original(self, msgspec.structs.replace(lease, request=request))

    put(victims.Eligibility, "_decide", decide)
    put(displacement, "_is_lower", lambda question, lease_id: True)


@mutant(
    "limit of one request",
    "a limit is compared with what is asked for, not with what is held as well",
    kinds=("admin.quota",),
)
def _limit(put: Put) -> None:
    original = limits._compare

    def compare(label: str, model: str, limit: Any, held: Any, more: Any) -> Any:
        return original(label, model, limit, (0, 0), more)

    put(limits, "_compare", compare)


@mutant("limit of queues forgotten", "only what tenants may hold is looked at", kinds=("admin.queue",))
def _queue_limit(put: Put) -> None:
    original = tenancy_books.Tenancy.chain

    def chain(self: Any, tenant: str, queue: str) -> Any:
        found = original(self, tenant, queue)
        return found._replace(limited=found.trees)

    put(tenancy_books.Tenancy, "chain", chain)


@mutant("limit of one tenant", "what is below a tenant does not count against its limit", kinds=("admin.quota",))
def _tree_limit(put: Put) -> None:
    put(tenancy_books, "upwards", lambda tenant: (tenant,))


@mutant("all queues preempt", "that a queue ends nobody is not looked at", size="crowded", kinds=("admin.queue",))
def _warlike(put: Put) -> None:
    original = tenancy_books.Tenancy.queue_spec
    put(
        tenancy_books.Tenancy,
        "queue_spec",
        lambda self, name: msgspec.structs.replace(original(self, name), preempts=True),
    )


@mutant("budget counted late", "what runs counts for a budget only when it is over", kinds=("admin.budget",))
def _late(put: Put) -> None:
    put(Meter, "used", lambda self, now_ms: (self.share_milli_ms, self.money))


@mutant("budget for ever", "a budget is not renewed when its period is over, but counted on", kinds=("admin.budget",))
def _for_ever(put: Put) -> None:
    put(Period, "length_ms", property(lambda self: 10**15))


# -- maintenance


@mutant("maintenance ignored", "nodes under maintenance are granted to as before", kinds=("admin.maintenance",))
def _unmaintained(put: Put) -> None:
    put(Node, "grantable", property(lambda self: self.open))


@mutant(
    "grace not counted",
    "what ends by its time limit is taken to be gone then",
    kinds=("admin.maintenance",),
    scene="""
        > pool 1 of 1
        > start
        > maintain node-0000 30
        > allocate job 1 limit=20 grace=30 until=queued
    """,
)
def _no_grace(put: Put) -> None:
    put(closing, "runs_ms", lambda request: request.time_limit_ms)


@mutant("left where it runs", "nothing is told to go when maintenance begins", kinds=("admin.maintenance",))
def _left(put: Put) -> None:
    put(maintaining, "_empty", lambda state, window, now_ms: [])


# -- money


@mutant("cut twice", "an interval is charged anew for each of two price changes of one millisecond", kinds=MONEY)
def _cut(put: Put) -> None:
    def cut(self: Any, entry: Any) -> Any:
        cuts = [dated.from_ms for dated in self.dated if entry.from_ms < dated.from_ms < entry.to_ms]
        start = entry.from_ms
        for end in [*cuts, entry.to_ms]:
            part = entry.within(start, end) if end > start else entry
            if part is not None:
                yield part, self.at(start)
            start = end

    put(PriceHistory, "cut", cut)


@mutant("prices reach back", "new prices hold for what was used before them as well", kinds=MONEY)
def _reach_back(put: Put) -> None:
    put(PriceHistory, "cut", lambda self, entry: iter([(entry, self.at(entry.to_ms))]))


@mutant("paid twice", "a payment that is posted again counts again", kinds=("money.credit",))
def _paid(put: Put) -> None:
    def post_credit(state: Any, command: Any, now_ms: int) -> Decision[None]:
        state.ledger.references.discard(command.reference)
        return bookkeeping.post_credit(state, command, now_ms)

    decide_by(put, "PostCredit", post_credit)


@mutant("folded with what follows", "what is summed up by the hour is charged at the prices of today", kinds=MONEY)
def _folded(put: Put) -> None:
    original = folding.fold

    def fold(buckets: Any, entry: Any, prices: Any) -> None:
        original(buckets, entry, PriceHistory(prices.dated[-1:]))

    put(books, "fold", fold)


@mutant("minimum for everybody", "the least that a slice pays is added to what paid more", kinds=MONEY)
def _minimum(put: Put) -> None:
    def minimum_extra_ms(self: Any, entry: Any) -> int:
        card = self.at(entry.from_ms)
        return card.minimum_ms if card is not None and entry.share_milli else 0

    put(PriceHistory, "minimum_extra_ms", minimum_extra_ms)
