"""The programme: reads a question from its standard input, writes the answer to its standard output.

    python -m aliquot.forecast.programme demand|starts

A coordinator runs it beside itself, so that the seconds that it takes, and NumPy's, stay out of the process that
decides. Each series is forecast, and tried out on its own past, which is what its intervals and its score come from.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np

from aliquot.forecast.backtest import Score, score, try_out
from aliquot.forecast.holes import filled
from aliquot.forecast.messages import Answer, Answers, Question
from aliquot.forecast.models import DAY, FIT_HOURS, LEARN_HOURS, WEEK, Floats, last_value, median_forecast
from aliquot.forecast.starts import Line, play

NICENESS = 10
"""A forecast may come a little later; decisions may not."""
TRY_HOURS = 24 * DAY
"""Of the past that a forecast is tried out on each time: what its intervals remember."""
EVERY_HOURS = 7
BUDGET_S = 120.0
"""Of processor time; series that come after it is used up get no forecast this time."""
HEADROOM = 0.95
"""The quantile of earlier rises that is kept above the last value by a forecast that has withdrawn itself."""


def answer(question: Question, used_s: Callable[[], float]) -> Answers:
    """Forecast each series; `used_s` is the processor time used so far."""
    found: dict[str, Answer] = {}
    for name, hours in question.series.items():
        if used_s() > BUDGET_S:
            break
        values = filled(hours)
        if len(values):
            found[name] = forecast(values, question.ahead)
    return Answers(found)


def forecast(hours: Floats, ahead: int) -> Answer:
    """One series, its holes filled."""
    unknown: list[int | None] = [None] * ahead
    if len(hours) < LEARN_HOURS:
        return Answer(_milli(last_value(hours, ahead)), unknown, unknown, "last")
    tried = hours[-(FIT_HOURS + TRY_HOURS) :]
    first = max(LEARN_HOURS, len(tried) - TRY_HOURS)
    trial = try_out(tried, DAY, every=EVERY_HOURS, first=first)
    found = score(tried, trial, first=first)
    if not found.trusted:
        return _withdrawn(hours, ahead, found)
    middle = median_forecast(hours, ahead)
    low, high = trial.intervals.forecast(len(tried), middle[:DAY])
    return Answer(_milli(middle), _padded(low, ahead), _padded(high, ahead), "median", found)


def _withdrawn(hours: Floats, ahead: int, found: Score) -> Answer:
    """The last value, and what demand has risen by over as many hours before, nineteen times of twenty."""
    last = float(hours[-1])
    rises: list[int | None] = []
    for steps in range(1, ahead + 1):
        changes = hours[steps:] - hours[:-steps] if steps <= min(DAY, len(hours) // 2) else np.zeros(0)
        known = float(np.quantile(changes, HEADROOM)) if len(changes) else math.nan
        rises.append(None if math.isnan(known) else round(last + max(known, 0.0)))
    return Answer(_milli(last_value(hours, ahead)), [None] * ahead, rises, "withdrawn", found)


def _milli(values: Floats) -> list[int]:
    return [max(0, round(float(value))) for value in values]


def _padded(values: Floats, ahead: int) -> list[int | None]:
    known: list[int | None] = [None if math.isnan(value) else max(0, round(float(value))) for value in values]
    return known + [None] * (ahead - len(known))


def main() -> int:
    """See the module's docstring."""
    os.nice(NICENESS)
    asked = sys.stdin.buffer.read()
    found: object
    if sys.argv[1:] == ["starts"]:
        found = play(msgspec.msgpack.decode(asked, type=Line))
    else:
        question = msgspec.msgpack.decode(asked, type=Question)
        if not 1 <= question.ahead <= WEEK:
            raise ValueError(f"{question.ahead} hours ahead; at most {WEEK}")
        found = answer(question, time.process_time)
    sys.stdout.buffer.write(msgspec.msgpack.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
