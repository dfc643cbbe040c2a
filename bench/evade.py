"""How long attackers who know how limits are enforced hold more than their lease has.

    python bench/evade.py --json [--attacks relay,dodge] [--tiers watchdog] [--span 60] [--rounds 1] [--write]

Real processes under a real agent on the simulated driver, which polls once a second; see tests/enforce/evasion.py.
The last line has, by attack and tier, `over_pct` (the largest share of any minute over the limit), `longest_s` (in one
piece), `noticed` (whether the agent did anything about it) and `ended` (whether the lease was ended for it), and
altogether `within_bars` (under `watchdog` and behind `preload` at most 2 s in one piece and 5 % of any minute;
`others_touched` 0). Of several rounds it is the worst. `--write` puts the table into docs/enforcement.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aliquot.common.tiers import Tier  # noqa: E402
from tests.enforce.conftest import why_not  # noqa: E402
from tests.enforce.evasion import ACROSS, ATTACKS, DEFAULTS, MINUTE_S, TIERS, Gain, across_nodes, attack  # noqa: E402
from tests.enforce.world import world  # noqa: E402

POLL_MS = 1000
"""The agent's default."""
PAGE = ROOT / "docs/enforcement.md"
BEGIN, END = "<!-- evasion table: begin -->", "<!-- evasion table: end -->"


def main() -> int:
    """Attack and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--attacks", default=",".join((*ATTACKS, ACROSS)), help="which, by name")
    parser.add_argument("--tiers", default=",".join(tier.word for tier in TIERS), help="under which tiers")
    parser.add_argument("--span", type=float, default=MINUTE_S, help="seconds that an attack goes on at most")
    parser.add_argument("--rounds", type=int, default=1, help="of each attack")
    parser.add_argument("--write", action="store_true", help="put the table into docs/enforcement.md")
    options = parser.parse_args()
    gains: list[Gain] = []
    for tier in TIERS:
        if tier.word in options.tiers.split(",") and not (problem := why_not(tier)):
            gains += attacks(tier, options.attacks.split(","), options.span, options.rounds)
        elif tier.word in options.tiers.split(","):
            print(f"{tier.word}: not run: {problem}", file=sys.stderr)
    lines = table(gains)
    print(lines)
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    if options.json:
        print(json.dumps(result(gains)))
    return 0 if all(gain.within_bars for gain in gains) else 1


def attacks(tier: Tier, names: list[str], span_s: float, rounds: int) -> list[Gain]:
    """All of them under one agent, one after the other; the one over several nodes in a pool of its own."""
    alone = [name for name in names if name != ACROSS]
    gains = _on_one_node(tier, alone, span_s, rounds) if alone else []
    if ACROSS in names:
        gains.append(worst([across_nodes(tier, span_s) for _ in range(rounds)]))
    return gains


def _on_one_node(tier: Tier, names: list[str], span_s: float, rounds: int) -> list[Gain]:
    with (
        tempfile.TemporaryDirectory(prefix="aliquot-evade-") as directory,
        world(Path(directory) / tier.word, tier, POLL_MS, DEFAULTS) as made,
    ):
        lease = itertools.count(10)
        return [worst([attack(made, name, f"l-{next(lease)}", span_s) for _ in range(rounds)]) for name in names]


def worst(gains: list[Gain]) -> Gain:
    """Of rounds of one attack."""
    return replace(
        gains[0],
        over_pct=max(gain.over_pct for gain in gains),
        longest_s=max(gain.longest_s for gain in gains),
        noticed=all(gain.noticed for gain in gains),
        ended=all(gain.ended for gain in gains),
        others_touched=sum(gain.others_touched for gain in gains),
    )


def result(gains: list[Gain]) -> dict[str, object]:
    """For the last line."""
    by_attack: dict[str, dict[str, object]] = {}
    for gain in gains:
        by_attack.setdefault(gain.attack, {})[gain.tier.word] = {
            "over_pct": gain.over_pct,
            "longest_s": gain.longest_s,
            "noticed": gain.noticed,
            "ended": gain.ended,
        }
    return {
        "attacks": by_attack,
        "over_pct": max((gain.over_pct for gain in gains), default=0.0),
        "longest_s": max((gain.longest_s for gain in gains), default=0.0),
        "others_touched": sum(gain.others_touched for gain in gains),
        "within_bars": all(gain.within_bars for gain in gains),
        "poll_ms": POLL_MS,
    }


def table(gains: list[Gain]) -> str:
    """In Markdown."""
    tiers = list(dict.fromkeys(gain.tier for gain in gains))
    cells = {(gain.attack, gain.tier): gain for gain in gains}
    lines = ["| attack | " + " | ".join(tier.word for tier in tiers) + " |", "|---" * (len(tiers) + 1) + "|"]
    for name in dict.fromkeys(gain.attack for gain in gains):
        row = [_cell(cells[name, tier]) for tier in tiers]
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _cell(gain: Gain) -> str:
    return f"{gain.longest_s:.2f} s, {gain.over_pct:.1f} %" + (", lease ended" if gain.ended else "")


if __name__ == "__main__":
    sys.exit(main())
