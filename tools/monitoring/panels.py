"""What a dashboard shows, as plain values: what is drawn by Grafana, tested on Prometheus and painted for the docs."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """How a panel looks."""

    LINES = "lines"
    STACK = "stack"
    """Lines that add up."""
    NUMBER = "number"
    TABLE = "table"


class Unit(enum.Enum):
    """By Grafana's names."""

    NONE = "short"
    PART = "percentunit"
    BYTES = "bytes"
    SECONDS = "s"
    PER_S = "ops"
    CELSIUS = "celsius"
    WATTS = "watt"
    HERTZ = "hertz"


@dataclass(frozen=True, slots=True)
class Query:
    """One question to Prometheus, with a legend in Grafana's own template."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture."""

    title: str
    what: str
    """For people who see it for the first time."""
    queries: tuple[Query, ...]
    unit: Unit = Unit.NONE
    kind: Kind = Kind.LINES
    thresholds: tuple[float, ...] = ()
    """From where on it is amber, and from where on red."""

    @property
    def width(self) -> int:
        """In Grafana's 24 columns."""
        return 6 if self.kind is Kind.NUMBER else 12

    @property
    def height(self) -> int:
        """In Grafana's rows of 30 pixels."""
        return 4 if self.kind is Kind.NUMBER else 8


@dataclass(frozen=True, slots=True)
class Variable:
    """Something to choose at the top."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    what: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = field(default=())


def lines(title: str, what: str, *queries: tuple[str, str], unit: Unit = Unit.NONE) -> Panel:
    """Curves over time."""
    return Panel(title, what, tuple(Query(*query) for query in queries), unit)


def stack(title: str, what: str, *queries: tuple[str, str], unit: Unit = Unit.NONE) -> Panel:
    """Curves that add up."""
    return Panel(title, what, tuple(Query(*query) for query in queries), unit, Kind.STACK)


def number(title: str, what: str, expr: str, unit: Unit = Unit.NONE, thresholds: tuple[float, ...] = ()) -> Panel:
    """One number, as it is now."""
    return Panel(title, what, (Query(expr),), unit, Kind.NUMBER, thresholds)


def listing(title: str, what: str, expr: str, unit: Unit = Unit.NONE) -> Panel:
    """A row for each series, as it is now."""
    return Panel(title, what, (Query(expr),), unit, Kind.TABLE)


_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def filled(expr: str, rate_interval: str, chosen: Mapping[str, str] | None = None) -> str:
    """A query as Prometheus gets it: with the interval that Grafana fills in, and (unless `chosen`) with everything
    chosen.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return rate_interval if name == "__rate_interval" else (chosen or {}).get(name, ".*")

    return _VARIABLE.sub(value, expr)
