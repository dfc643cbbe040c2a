"""Defragmentation by itself: within its bounds, not in quiet hours, only where it is switched on, and on the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.common.errors import ConfigError
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.access import Acted
from aliquot.coordinator.core.commands.outcomes import DefragmentView
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.placement.move_budget import MOVES_PERMILLE, MoveBudget
from aliquot.coordinator.settings.config import DefragmentSettings
from aliquot.coordinator.upkeep.defragmenting import PRINCIPAL, Auto, Defragmenter, Rules
from tests.core.harness import Books, node, request

HOUR_MS = 3_600_000
TEN = 1_790_000_000_000 // 86_400_000 * 86_400_000 + 10 * HOUR_MS
"""Ten o'clock in UTC, of a day long after what the books remember."""


class Pool:
    """Small movable leases that sit alone where whole devices are wanted."""

    def __init__(self, rules: Rules, *, moves: int = 100) -> None:
        self.rules = rules
        self.books = books = Books(CoreConfig(policy="spread"))
        books.now_ms = TEN
        for number in range(4):
            books.connect(node(f"n{number}", 1))
        for _ in range(20):
            whole = books.activate(books.allocate(request(1000)))
            books.do(c.Release(whole.lease_id))
            books.report(whole, c.ReportStatus.GONE)
            books.settle()
        self.leases = [books.activate(books.allocate(request(300, movable=True, ttl_ms=0))) for _ in range(4)]
        self.nodes = self.places()
        books.planner = type(books.planner)(books.state, CoreConfig(policy="binpack"))
        for _ in range(50):
            books.planner.engine.mix.note(request(1000).demand)
        books.planner.engine.moves = MoveBudget()
        books.planner.engine.moves.earn(moves * 1000 // MOVES_PERMILLE + 1, live=4)
        self.defragmenter = Defragmenter(self.submit, self, lambda: self.rules)

    def now_ms(self) -> int:
        """It is the clock, too."""
        return self.books.now_ms

    def monotonic_ms(self) -> int:
        """The same time."""
        return self.books.now_ms

    async def submit(self, command: c.Command[DefragmentView]) -> DefragmentView:
        return self.books.do(command).outcome

    def places(self) -> list[tuple[str, ...]]:
        """Where each lease holds anything."""
        return [tuple(piece.plan.node_id for piece in self.books.again(lease).current) for lease in self.leases]

    async def after(self, hours: float) -> int:
        """A round so much later."""
        self.books.now_ms += int(hours * HOUR_MS)
        return await self.defragmenter.round()


ON = Rules(Auto.ON, 1000, 12)


async def test_it_moves_what_makes_devices_whole_and_puts_that_on_the_record() -> None:
    pool = Pool(ON)
    assert len(set(pool.nodes)) == 4
    moved = await pool.after(1)
    assert moved > 0
    assert len(set(pool.places())) < 4
    acted = [fact for fact in pool.books.facts if isinstance(fact, Acted)]
    assert {(fact.principal, fact.action) for fact in acted} == {(PRINCIPAL, "Defragment")}
    changed = [lease for lease, before in zip(pool.leases, pool.nodes, strict=True) if pool.books.again(lease).requeues]
    assert len(changed) == moved
    assert {pool.books.again(lease).note for lease in changed} == {"moved: defragmentation by itself"}


@pytest.mark.parametrize(
    "rules",
    [
        ON._replace(auto=Auto.OFF),
        ON._replace(moves_an_hour=0),
        ON._replace(quiet_hours="daily 09:00-13:00"),
    ],
    ids=["off", "no moves", "quiet hours"],
)
async def test_it_moves_nothing_where_it_may_not(rules: Rules) -> None:
    pool = Pool(rules)
    assert await pool.after(1) == 0
    assert pool.places() == pool.nodes


async def test_a_dry_run_counts_and_changes_nothing() -> None:
    pool = Pool(ON._replace(auto=Auto.DRY_RUN))
    before = len(pool.books.facts)
    assert await pool.after(1) > 0
    assert len(pool.books.facts) == before
    assert pool.places() == pool.nodes


async def test_moves_are_earned_by_the_hour_and_by_requests() -> None:
    pool = Pool(ON._replace(moves_an_hour=1))
    assert await pool.after(0.5) == 0
    assert await pool.after(0.5) == 1
    assert await pool.after(0.5) == 0
    poor = Pool(ON, moves=0)
    assert await poor.after(1) == 0


async def test_quiet_hours_end() -> None:
    pool = Pool(ON._replace(quiet_hours="11:00-13:00 Europe/Zurich"))
    assert await pool.after(0.9) == 0
    assert await pool.after(0.2) > 0


@pytest.mark.parametrize(
    "said", [{"auto": "perhaps"}, {"quiet_hours": "8 o'clock"}, {"moves_an_hour": -1}, {"every": 5}]
)
def test_settings_that_can_not_be_are_refused(said: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        DefragmentSettings(**said)  # type: ignore[arg-type]
    assert DefragmentSettings().rules().auto is Auto.OFF
