"""The table of docs/forecast.md: written by `bench/scale.py --only forecast --write`, and read back by a test."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

DOCUMENT = Path(__file__).parents[2] / "docs" / "forecast.md"
_HEAD = "| series | origins | error, 24 h | first 6 h | MASE | pinball | covered |"
_TABLE = re.compile(re.escape(_HEAD) + r"\n\|[-|]+\|\n((?:\|.*\|\n)+)")
_SENTENCE = re.compile(r"Over the first nine series \(geometric mean\).*?at worst \(`[^`]+`", re.DOTALL)
COUNTED = 9
"""The series of which the page's figures are; those below are parts of one of them."""


class Row(NamedTuple):
    """One series."""

    name: str
    origins: int
    ratio: float
    ratio_6h: float
    mase: float
    pinball: float
    coverage: float

    @property
    def line(self) -> str:
        """As in the table."""
        return f"| {self.name} | {self.origins} | {' | '.join(f'{figure:.2f}' for figure in self[2:])} |"


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """What `bench/scale.py` answers about the nine series."""
    counted = rows[:COUNTED]
    return {
        "mae_ratio_24h": geometric([row.ratio for row in counted]),
        "mae_ratio_6h": geometric([row.ratio_6h for row in counted]),
        "mae_ratio_worst": round(max(row.ratio for row in counted), 4),
        "mase": geometric([row.mase for row in counted]),
        "coverage_90": round(statistics.mean(row.coverage for row in counted), 4),
        "coverage_worst": round(min(row.coverage for row in counted), 4),
        "pinball_90": round(statistics.mean(row.pinball for row in counted), 4),
    }


def sentence(rows: Sequence[Row], found: Mapping[str, float]) -> str:
    """What the text says of the table."""
    worst = min(rows[:COUNTED], key=lambda row: row.coverage)
    return (
        f"Over the first nine series (geometric mean) the error is {found['mae_ratio_24h']:.2f} at 24 hours and "
        f"{found['mae_ratio_6h']:.2f} in the first six;\n"
        f"{found['coverage_90']:.2f} is covered on average, and {found['coverage_worst']:.2f} at worst (`{worst.name}`"
    )


def documented(text: str) -> list[Row]:
    """The rows of the table. Raises ValueError where there is none."""
    table = _TABLE.search(text)
    if table is None:
        raise ValueError("there is no table of forecasts")
    cells = [line.strip("| \n").split(" | ") for line in table.group(1).splitlines()]
    return [Row(name, int(origins), *map(float, figures)) for name, origins, *figures in cells]


def said(text: str) -> str:
    """What the text says of the table. Raises ValueError where it says nothing."""
    found = _SENTENCE.search(text)
    if found is None:
        raise ValueError("nothing is said of the table of forecasts")
    return found.group()


def write(rows: Sequence[Row], path: Path = DOCUMENT) -> None:
    """Put rows and what follows from them, as they are shown, into the document."""
    text = path.read_text("utf-8")
    lines = "".join(f"{row.line}\n" for row in rows)
    text = _TABLE.sub(lambda found: found.group().replace(found.group(1), lines), text)
    shown = documented(text)
    path.write_text(text.replace(said(text), sentence(shown, figures(shown))), "utf-8")


def geometric(values: Sequence[float]) -> float:
    """Their geometric mean."""
    return round(math.exp(statistics.mean(math.log(value) for value in values)), 4)
