"""Tries a sample of the mutants of an area and says which of them its tests do not notice."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

from tools.mutating.areas import AREAS, ROOT
from tools.mutating.cover import cover_of
from tools.mutating.judged import EQUIVALENT
from tools.mutating.mutants import NOTHING, Mutant, sample
from tools.mutating.trying import try_all, warm_up


def main() -> int:
    """The program. Exit code 1 when fewer than the bar of those that could be noticed were."""
    arguments = _parser().parse_args()
    area = AREAS[arguments.area]
    cover = cover_of(arguments.area)
    warm_up()
    files = [path for path in area.files() if arguments.only in path.relative_to(ROOT).as_posix()]
    chosen, of_all = sample(files, arguments.sample, arguments.seed)
    chosen = [mutant for mutant in chosen if not arguments.name or arguments.name in mutant.name]
    control = [Mutant(mutant.path, NOTHING, 0, mutant.line, 0) for mutant in chosen[:: max(1, len(chosen) // 5)]]
    for verdict in try_all(control, cover, arguments.jobs):
        if verdict.killed:
            _say(f"the tests of {verdict.mutant.path}:{verdict.mutant.line} fail without any change: {verdict.how}")
            return 2
    began_s, killed, equivalent, survivors = time.monotonic(), 0, 0, []
    for verdict in try_all(chosen, cover, arguments.jobs):
        mutant = verdict.mutant
        reason = EQUIVALENT.get(key_of(mutant), "")
        killed += verdict.killed
        if not verdict.killed:
            equivalent += bool(reason)
            if not reason:
                survivors.append(mutant)
        word = "killed" if verdict.killed else f"equivalent: {reason}" if reason else "SURVIVED"
        _say(f"{word}  {mutant.name}  ({verdict.tests} tests) {verdict.how if arguments.verbose else ''}")
    for mutant in survivors:
        _say(f"\nSURVIVED {mutant.name}\n    {key_of(mutant)!r}\n{_shown(mutant)}")
    judged = max(1, len(chosen) - equivalent)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = {
        "area": arguments.area,
        "mutants": of_all,
        "sampled": len(chosen),
        "killed": killed,
        "equivalent": equivalent,
        "survived": len(survivors),
        "score": round(100 * killed / judged, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime),
        "wall_s": round(time.monotonic() - began_s),
    }
    _say(json.dumps(summary))
    return int(summary["score"] < arguments.bar)


def key_of(mutant: Mutant) -> str:
    """How a judgement names a mutant: by the line's own text, so that it outlives what changes above it."""
    line = (ROOT / mutant.path).read_text("utf-8").splitlines()[mutant.line - 1].strip()
    return f"{mutant.path} {mutant.operator} {mutant.column}: {line}"


def _shown(mutant: Mutant) -> str:
    before = (ROOT / mutant.path).read_text("utf-8").splitlines()
    after = mutant.code().splitlines()
    changed = [number for number, (old, new) in enumerate(zip(before, after, strict=False)) if old != new]
    first = changed[0] if changed else mutant.line - 1
    return "".join(f"    - {before[number]}\n    + {after[number]}\n" for number in range(first, first + 1))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutating", description=__doc__)
    parser.add_argument("area", choices=AREAS)
    parser.add_argument("--sample", type=int, default=80, metavar="N", help="how many, chosen by hash (80)")
    parser.add_argument("--seed", default="", help="another sample for each (none)")
    parser.add_argument("--only", default="", metavar="PATH", help="of files with this in their path")
    parser.add_argument("--name", default="", metavar="TEXT", help="of these, those with this in their name")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--bar", type=float, default=90.0, metavar="PERCENT", help="fewer than this fail (90)")
    parser.add_argument("--verbose", action="store_true", help="say by what each was killed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
