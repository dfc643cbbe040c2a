"""A campaign of faults on simulated GPUs: each row of the signal table raised, acted upon, healed; the card returns.

    python bench/health.py --json [--write]

Production coordinators and agents in simulated time, with the simulation's auditor listening; see
tests/simulation/ward.py. The last line has `rows`, `rows_passed`, `wrong_quarantines` (cards that were out of service
and should not have been, also in a storm of 1,000 XID 31 and one of 168,924 XID 45), `stuck_cards` (not back after
their cause was gone) and `mttr_p95_s` (of fatal faults that a reset cures, from the first bad sign to service, in
simulated seconds; the lease on the card has 5 s of grace). `--write` puts the table into docs/health.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aliquot.common.signs import Remedy, Severity  # noqa: E402
from tests.simulation.ward import ROWS, Outcome, run_row  # noqa: E402

PAGE = ROOT / "docs/health.md"
BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"
MTTR_S_MAX = 90.0


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--write", action="store_true", help="put the table into docs/health.md")
    options = parser.parse_args()
    outcomes = [run_row(row) for row in ROWS]
    lines = table(outcomes)
    print(lines)
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    found = result(outcomes)
    if options.json:
        print(json.dumps(found))
    within = found["wrong_quarantines"] == found["stuck_cards"] == 0 and float(found["mttr_p95_s"]) <= MTTR_S_MAX
    return 0 if within and found["rows"] == found["rows_passed"] else 1


def result(outcomes: list[Outcome]) -> dict[str, float]:
    """The figures."""
    resets = sorted(
        outcome.repair_s
        for outcome in outcomes
        if outcome.repair_s is not None
        and outcome.row.signal.severity is Severity.FATAL
        and outcome.row.signal.remedy is Remedy.RESET
        and not outcome.row.note
    )
    return {
        "rows": len(outcomes),
        "rows_passed": sum(outcome.passed for outcome in outcomes),
        "wrong_quarantines": sum(outcome.wrong for outcome in outcomes),
        "stuck_cards": sum(outcome.stuck for outcome in outcomes),
        "mttr_p95_s": resets[(len(resets) * 95 - 1) // 100] if resets else -1.0,
    }


def table(outcomes: list[Outcome]) -> str:
    """For docs/health.md."""
    lines = [
        "| signal | source | severity | scope | remedy | out after | back after | what was done | over when |",
        "|---|---|---|---|---|--:|--:|---|---|",
    ]
    for outcome in outcomes:
        signal, note = outcome.row.signal, outcome.row.note
        done = outcome.done + (f" ({note})" if note else "")
        lines.append(
            f"| `{signal.cause}` | {signal.source} | {signal.severity.name.lower()} | {signal.scope.name.lower()} "
            f"| {signal.remedy.name.lower()} | {_seconds(outcome.out_s)} | {_seconds(outcome.repair_s)} "
            f"| {done if outcome.passed else 'FAILED: ' + '; '.join(outcome.problems)} | {signal.over} |"
        )
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
