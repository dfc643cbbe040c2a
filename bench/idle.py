"""A campaign of idleness: leases with known patterns on a pool, and what the pool makes of them.

    python bench/idle.py --json [--leases 200] [--minutes 125] [--no-real]

Production coordinators and agents in simulated time, with the simulation's auditor listening; see
tests/simulation/idlers.py: training with pauses for data, evaluation pauses, notebooks, warm servers, servers that are
asked something now and then, sleepers, leases without a program, hung collectives, gangs with one idle rank. The last
line has `leases`, `precision` (of the minutes in which a lease was said to be idle, how many were rightly) and `recall`
(of the minutes in which it should have been known, how many were), `lent_back_ms_p99` (from the first activity of a
lender until what used its share was gone; an agent polls there every 2 s), `ended_unwarned`, `gpu_hours_won` (share
times time that borrowers had), and `real`: a small one with a coordinator, an agent and programs that are processes, on
simulated devices: how long after a lender's first activity its borrower was gone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.simulation.idlers import Campaign, Result  # noqa: E402
from tests.use.real import lend_and_return  # noqa: E402

PRECISION_MIN, RECALL_MIN, LENT_BACK_MS_MAX = 0.99, 0.95, 5_000
LEASES_PER_SCALE = 20


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--leases", type=int, default=200, help="a multiple of 20")
    parser.add_argument("--minutes", type=int, default=125, help="of simulated time")
    parser.add_argument("--no-real", action="store_true", help="without real processes")
    options = parser.parse_args()
    found = Campaign(max(1, options.leases // LEASES_PER_SCALE)).run(options.minutes)
    result = figures(found)
    if not options.no_real:
        result["real_lent_back_ms"] = lend_and_return()
    for violation in found.violations:
        print("violation:", violation)
    for name, minutes in found.wrong.items():
        print(f"wrongly idle: {name}, {minutes} min")
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:>20}  {value}")
    within = found.precision >= PRECISION_MIN and found.recall >= RECALL_MIN and not found.ended_unwarned
    return 0 if within and not found.violations and result["lent_back_ms_p99"] <= LENT_BACK_MS_MAX else 1


def figures(found: Result) -> dict[str, float]:
    """What is reported."""
    backs = sorted(found.lent_back_ms)
    return {
        "leases": found.leases,
        "precision": round(found.precision, 4),
        "recall": round(found.recall, 4),
        "lent_back_ms_p99": backs[min(len(backs) - 1, len(backs) * 99 // 100)] if backs else 0,
        "ended_unwarned": found.ended_unwarned,
        "gpu_hours_won": round(found.gpu_hours_won, 2),
        "loans": found.loans,
        "returned": len(backs),
        "ended": found.ended,
        "hung_found": found.hung,
    }


if __name__ == "__main__":
    sys.exit(main())
