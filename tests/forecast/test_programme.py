"""The programme that forecasts, as a process; and what becomes of a coordinator whose programme dies, hangs or lies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from aliquot.common.duties import Duties
from aliquot.coordinator.core.books.demand import HOUR_MS, WHOLE, Forecasts
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.commands import ExpectDemand, NoteDemand
from aliquot.coordinator.programmes import ProgrammeError, run_programme
from aliquot.coordinator.reading.demand import DemandMeter
from aliquot.coordinator.reading.forecasts import DemandForecasts, StartForecasts
from aliquot.coordinator.reading.totals import Totals
from aliquot.coordinator.upkeep.forecasting import PROGRAMME, Forecaster
from aliquot.forecast.messages import Answer, Answers, Question
from aliquot.forecast.starts import Line, Running, Waiting
from tests.core.harness import Books, node, request

AT_MS = 1000 * HOUR_MS


def history(hours: int = 10 * 24) -> Books:
    books = Books()
    books.now_ms = AT_MS
    for hour in range(1000 - hours, 1000):
        milli = 40_000 if 8 <= hour % 24 < 20 else 10_000
        books.state.demand.note(hour, ((WHOLE, milli), ("tenant/a", milli // 2)))
    return books


class Clock:
    """Stands still."""

    def __init__(self, books: Books) -> None:
        self.books = books

    def now_ms(self) -> int:
        return self.books.now_ms

    monotonic_ms = now_ms


DUTIES = Duties()


def forecaster(books: Books, run: Callable[..., Awaitable[bytes]] = run_programme) -> Forecaster:
    clock = Clock(books)

    async def submit(command: ExpectDemand) -> None:
        books.do(command)

    return Forecaster(
        view=books.read(),
        clock=clock,
        demand=DemandForecasts(),
        starts=StartForecasts(clock),
        submit=submit,
        tell=DUTIES.tell,
        run=run,
    )


def demand_of(made: Forecaster) -> DemandForecasts:
    return made._demand


def answering(out: bytes) -> Callable[..., Awaitable[bytes]]:
    async def run(module: str, question: bytes, *arguments: str, within_s: float) -> bytes:
        assert module == PROGRAMME
        return out

    return run


async def test_demand_is_forecast_in_a_process_of_its_own() -> None:
    made = forecaster(history())
    assert await made.forecast_once()
    found = demand_of(made)
    assert found.hour == 999
    assert list(found.series) == [WHOLE, "tenant/a"]
    whole = found.series[WHOLE]
    assert len(whole.middle) == len(whole.high) == 168
    assert whole.method == "median"
    first = 1000 % 24
    by_hour = {(first + ahead) % 24: milli for ahead, milli in enumerate(whole.middle[:24])}
    assert by_hour[12] > 35_000
    assert by_hour[3] < 15_000
    assert whole.score.origins > 10
    values = {
        (sample.name, *sample.labels.values()): sample.value for each in found.collect() for sample in each.samples
    }
    assert values["aliquot_forecast_milli", "all", "1", "middle"] == whole.middle[0]
    assert values["aliquot_forecast_withdrawn", "tenant/a"] == 0


async def test_the_planner_of_nodes_is_told_what_is_expected_of_each_class_while_it_keeps_its_word() -> None:
    books = history()
    for hour in range(760, 1000):
        milli = 40_000 if 8 <= hour % 24 < 20 else 10_000
        books.state.demand.hours[hour - 760] = ((WHOLE, milli), ("class/night/shift/A100-80", milli))
    known = books.decider.known.memory.part(Forecasts, Forecasts)
    assert await forecaster(books).forecast_once()
    assert list(known.of(books.now_ms)) == [("night/shift", "A100-80")]
    noon_ms = (1000 + (12 - 1000 % 24) % 24) * HOUR_MS
    assert known.wanted_milli("night/shift", "A100-80", books.now_ms, noon_ms) > 35_000
    found = Answer([5], [None], [None], "withdrawn")
    made = forecaster(books, answering(msgspec.msgpack.encode(Answers({"class/night/shift/A100-80": found}))))
    assert await made.forecast_once()
    assert list(known.of(books.now_ms)) == []


async def test_a_pool_without_history_has_no_forecast_and_a_young_one_says_what_it_rests_on() -> None:
    books = Books()
    assert not await forecaster(books).forecast_once()
    made = forecaster(history(5))
    assert await made.forecast_once()
    assert demand_of(made).series[WHOLE].method == "last"
    assert demand_of(made).series[WHOLE].high == [None] * 168


async def test_starts_are_expected_in_a_process_of_its_own_and_scored_by_what_comes_of_them() -> None:
    books = Books()
    books.now_ms = AT_MS
    books.connect(node("n", 1))
    first = books.activate(books.allocate(request(1000, tenant="a", time_limit_ms=600_000)))
    second = books.allocate(request(1000, tenant="b"))
    books.settle()
    made = forecaster(books)
    view = made._view
    assert await made.expect_once()
    starts = made._starts
    found = starts.of(second.lease_id)
    assert found is not None
    assert AT_MS + 60_000 <= found.expected_ms <= first.granted_ms + 600_000
    assert found.earliest_ms is None, "nothing is known yet of how wrong such expectations are"
    waiting = view.leases[second.lease_id]
    books.now_ms += 900_000
    starts.lease_changed(waiting, granted(waiting, view.leases[first.lease_id]))
    assert starts.of(second.lease_id) is None
    assert starts.begun == 1
    assert starts.error_s == pytest.approx((AT_MS + 900_000 - found.expected_ms) / 1000, abs=0.01)
    assert starts.naive_error_s == 900, "nobody had waited before"
    assert len(starts) == 0


def granted(waiting: Lease, like: Lease) -> Lease:
    """A lease that has what another holds."""
    slices = tuple(msgspec.structs.replace(piece, lease_epoch=1) for piece in like.slices)
    return msgspec.structs.replace(waiting, slices=slices, lease_epoch=1)


async def test_where_nothing_waits_nothing_is_asked() -> None:
    async def never(*arguments: object, **more: object) -> bytes:
        raise AssertionError("the programme was started")

    assert not await forecaster(Books(), never).expect_once()


@pytest.mark.parametrize(
    "answer",
    [
        Answers({WHOLE: Answer([5] * 24, [None] * 24, [None] * 23, "median")}),
        Answers({WHOLE: Answer([-1] * 24, [None] * 24, [None] * 24, "median")}),
        Answers({WHOLE: Answer([10**15] * 24, [None] * 24, [None] * 24, "median")}),
        Answers({WHOLE: Answer([], [], [], "median")}),
        Answers({"tenant/unheard-of": Answer([1], [None], [None], "median")}),
    ],
)
async def test_what_cannot_be_an_answer_is_not_taken_for_one(answer: Answers) -> None:
    made = forecaster(history(), answering(msgspec.msgpack.encode(answer)))
    await made.forecast_once()
    assert demand_of(made).series == {}


@pytest.mark.parametrize("out", [b"", b"\xc1 nonsense", msgspec.msgpack.encode({"series": 7})])
async def test_nonsense_leaves_the_old_forecast_in_force(out: bytes) -> None:
    books = history()
    made = forecaster(books)
    assert await made.forecast_once()
    before = dict(demand_of(made).series)
    made._run = answering(out)
    assert not await made.forecast_once()
    assert demand_of(made).series == before
    assert DUTIES.failing()["forecast-demand"]


async def test_a_programme_that_dies_or_hangs_is_a_forecast_that_was_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProgrammeError):
        await run_programme(PROGRAMME, b"nonsense", "demand", within_s=60)
    line = Line((("A", 0),), (Running("a", 1.0, ((0, 1000),)),), (Waiting("l", "a", 500),), {})
    asked = msgspec.msgpack.encode(line)
    with pytest.raises(ProgrammeError, match="no result in"):
        await run_programme(PROGRAMME, asked, "starts", within_s=0.001)
    found = msgspec.msgpack.decode(await run_programme(PROGRAMME, asked, "starts", within_s=60))
    assert len(found["l"]) == 15
    monkeypatch.setattr(sys, "executable", "/bin/false")
    made = forecaster(history())
    assert not await made.forecast_once()
    assert DUTIES.failing()["forecast-demand"]


async def test_a_question_for_too_many_hours_is_refused() -> None:
    with pytest.raises(ProgrammeError, match="at most 168"):
        await run_programme(PROGRAMME, msgspec.msgpack.encode(Question({WHOLE: [1]}, 1000)), "demand", within_s=60)


async def test_an_hour_is_taken_down_when_it_is_over() -> None:
    books = Books()
    books.now_ms = 100 * HOUR_MS - 50
    made = forecaster(books)
    taken: asyncio.Future[NoteDemand] = asyncio.get_running_loop().create_future()

    async def submit(command: NoteDemand) -> None:
        if not taken.done():
            taken.set_result(command)

    meter = DemandMeter(Clock(books), [], Totals())
    task = asyncio.create_task(made.note(meter, submit))
    await asyncio.sleep(0)
    books.now_ms += 100
    async with asyncio.timeout(30):
        command = await taken
    assert command == NoteDemand(99, 0, ())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
