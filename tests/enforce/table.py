"""Runs every attempt against every tier and writes the table, as it came out, into docs/enforcement.md.

    python -m tests.enforce.table [--print]

The table stands between two marker lines there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from aliquot.common.tiers import Tier
from tests.enforce.cases import CASES
from tests.enforce.conftest import why_not
from tests.enforce.verdict import Verdict, not_run
from tests.enforce.world import World, world

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs/enforcement.md",)
BEGIN, END = "<!-- bypass table: begin -->", "<!-- bypass table: end -->"
TIERS = (Tier.DRIVER, Tier.PRELOAD, Tier.WATCHDOG)
POLL_MS = 1000
"""The agent's default: what users get."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--print", action="store_true", help="print the table, change no file")
    options = parser.parse_args()
    columns = {tier: column(tier) for tier in TIERS}
    table = render(columns)
    sys.stdout.write(table + "\n")
    if not options.print:
        for page in PAGES:
            put(page, table)
    return 0


def column(tier: Tier) -> dict[str, Verdict]:
    """Every attempt in one tier."""
    problem = why_not(tier)
    if problem:
        return {title: not_run(problem) for title in CASES}
    with (
        tempfile.TemporaryDirectory(prefix="aliquot-bypass-") as directory,
        world(Path(directory) / tier.word, tier, POLL_MS) as made,
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


def render(columns: Mapping[Tier, Mapping[str, Verdict]]) -> str:
    """The table in Markdown."""
    lines = [
        "| attempt | " + " | ".join(tier.word for tier in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines += [f"| {title} | " + " | ".join(str(column[title]) for column in columns.values()) + " |" for title in CASES]
    return "\n".join(lines)


def put(page: Path, table: str) -> None:
    """Replace what stands between the markers, where a page has them."""
    if not page.is_file():
        return
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
