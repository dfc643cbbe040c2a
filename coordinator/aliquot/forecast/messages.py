"""What the programme is asked, and what it answers: MessagePack, both ways."""

from __future__ import annotations

import msgspec

from aliquot.forecast.backtest import Score


class Question(msgspec.Struct, frozen=True):
    """Demand so far, of one pool."""

    series: dict[str, list[int | None]]
    """By name, those of most interest first: thousandths of devices, hour by hour up to the same last hour. None: not
    known.
    """
    ahead: int = 168
    """Hours to forecast."""


class Answer(msgspec.Struct, frozen=True):
    """The forecast of one series, in thousandths of devices, for each hour ahead."""

    middle: list[int]
    low: list[int | None]
    high: list[int | None]
    """Of an interval that holds 90 % of what comes; None: not known."""
    method: str
    """`median`; `last`: too little history for more; `withdrawn`: its intervals did not keep their word lately, so it
    is the last value, and headroom above it.
    """
    score: Score = Score()


class Answers(msgspec.Struct, frozen=True):
    """Of all series that there was time for."""

    series: dict[str, Answer]
