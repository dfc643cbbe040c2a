"""Runs every attempt against every tier and writes the table, as it came out, into docs/enforcement.md.

    python -m tests.enforce.table [--print] [--dmem]

Two tables stand there, each between two marker lines: of all tiers on NVIDIA's cards, and of the kernel's limits on
cgroups (`dmem`) on the model of these. `--dmem`: the second alone.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aliquot.common.tiers import Tier
from tests.enforce import cases_dmem
from tests.enforce.cases import CASES
from tests.enforce.conftest import why_not
from tests.enforce.verdict import Kind, Verdict, not_run
from tests.enforce.world import World, world

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs/enforcement.md",)
BYPASS, DMEM = "bypass table", "dmem table"
COLUMNS: dict[str, tuple[Tier, dict[str, Any]]] = {
    "driver, own books": (Tier.DRIVER, {}),
    "driver, nested": (Tier.DRIVER, {"nested": True}),
    "mps, a server a tenant": (Tier.MPS, {"mps_protocol": 2}),
    "mps, one server, the driver behind": (Tier.MPS, {"mps_protocol": 3}),
    "preload": (Tier.PRELOAD, {}),
    "watchdog": (Tier.WATCHDOG, {}),
}
"""The tier, and what its world is like."""
POLL_MS = 1000
"""The agent's default: what users get."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--print", action="store_true", help="print the table, change no file")
    parser.add_argument("--dmem", action="store_true", help="only the table of dmem")
    options = parser.parse_args()
    tables = {} if options.dmem else {BYPASS: render({name: column(*of) for name, of in COLUMNS.items()}, CASES)}
    tables[DMEM] = render({"dmem, on its model": dmem_column(), "on hardware": {}}, cases_dmem.CASES)
    for name, table in tables.items():
        sys.stdout.write(table + "\n")
        for page in PAGES if not options.print else ():
            put(page, name, table)
    return 0


def dmem_column() -> dict[str, Verdict]:
    """Every attempt against the kernel's limits, on the model."""
    if problem := why_not(Tier.DRIVER):
        return dict.fromkeys(cases_dmem.CASES, not_run(problem))
    found: dict[str, Verdict] = {}
    with tempfile.TemporaryDirectory(prefix="aliquot-bypass-") as folder:
        directory = Path(folder) / "dmem"
        directory.mkdir()
        with contextlib.closing(cases_dmem.DmemWorld(directory, POLL_MS)) as made:
            for title, case in cases_dmem.CASES.items():
                found[title] = case(made)
                made.settle()
                sys.stderr.write(f"dmem      {title:70} {found[title]} {found[title].detail}\n")
    return found


def column(tier: Tier, kind: Mapping[str, Any]) -> dict[str, Verdict]:
    """Every attempt in one tier."""
    problem = why_not(tier)
    if problem:
        return {title: not_run(problem) for title in CASES}
    with (
        tempfile.TemporaryDirectory(prefix="aliquot-bypass-") as directory,
        world(Path(directory) / tier.word, tier, POLL_MS, **kind) as made,
    ):
        return {title: attempt(made, title) for title in CASES}


def attempt(made: World, title: str) -> Verdict:
    """One attempt; the world is empty again afterwards."""
    try:
        verdict = CASES[title](made)
    finally:
        made.settle()
        made.renew()
    sys.stderr.write(f"{made.tier.word:9} {title:70} {verdict} {verdict.detail}\n")
    return verdict


def render(columns: Mapping[str, Mapping[str, Verdict]], titles: Iterable[str]) -> str:
    """The table in Markdown. What a column has nothing of was not run."""
    lines = [f"| attempt | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for title in titles:
        cells = (str(column[title]) if title in column else Kind.NOT_RUN.value for column in columns.values())
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def put(page: Path, name: str, table: str) -> None:
    """Replace what stands between the markers, where a page has them."""
    if not page.is_file():
        return
    opening, closing = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = page.read_text(encoding="utf-8").partition(opening)
    _, end, after = rest.partition(closing)
    if begin and end:
        page.write_text(f"{before}{opening}\n{table}\n{closing}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
