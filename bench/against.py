"""Is this checkout slower than a commit? The main benches of both by turns on this machine, and their ratios.

    python bench/against.py 76d22986 --json
    python bench/against.py 76d22986 --quick --only allocate recover

Each side runs its own benches with its own modules and the same libraries (`lib/checkout.py`), in rounds that begin
with the one and the other side by turns. Of each figure there is a ratio a round, which says how many times *worse*
this checkout is, whichever way is better; the middle one counts. It has failed where the middle ratio is beyond the
figure's stated loss and no round was without loss, so that one disturbed round of three fails nothing. Where times
depend on what else the machine does, prefer figures in processor time. Sizes are small: ratios are what counts.

A bench, a flag or a figure that the base doesn't have is left out, and told as such; one that fails here is a failure.
A run of three rounds with nothing left out, of a clean working tree, adds a line to bench/history. The last line is
one JSON object: `ok`, `slower` (the figures that failed), `failed` (benches, with the reason), `left_out`, and
`ratios`: of each figure `median`, `low` and `high` of the rounds, and `base` and `head`, the middle values.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.lib import history  # noqa: E402
from bench.lib.checkout import Checkout, CheckoutError, compared, described  # noqa: E402

BENCH_WITHIN_S = 300.0


class Figure(NamedTuple):
    """A field of a bench's JSON object (dots lead into objects), and the part that may be lost."""

    path: str
    loss: float
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Bench:
    """A script, the flags that make it small, and what of it is compared. `cpu_s`: of all its processes."""

    name: str
    scripts: tuple[str, ...]
    """Where it stands, and where it stood earlier; in this checkout's folder if its file is shared by both sides."""
    flags: str
    quick: str
    figures: tuple[Figure, ...]
    shared: bool = False
    """This checkout's script serves both sides."""


BENCHES = (
    Bench(
        "start",
        ("bench/lib/footprint.py",),
        "",
        "",
        tuple(
            Figure(f"{program}_{figure}", loss)
            for program in ("coordinator", "agent", "joined", "console", "cli")
            for figure, loss in (("modules", 0.03), ("rss_mb", 0.03), ("cpu_s", 0.15))
        ),
        shared=True,
    ),
    Bench(
        "decide",
        ("bench/decide.py",),
        "--devices 6212 --loads 0.85 --decisions 6000 --scans 5 --json",
        "--devices 2000 --loads 0.85 --decisions 3000 --scans 5 --json",
        (
            Figure("*.p50_us", 0.1),
            Figure("*.p99_cpu_us", 0.15),
            Figure("*.mean_us", 0.1),
            Figure("gang_refused_ms", 0.15),
            Figure("cpu_s", 0.15),
        ),
    ),
    Bench(
        "allocate",
        ("bench/allocate.py",),
        "--seconds 4 --warm-up 3 --nodes 500 --agents 60 --json",
        "--seconds 2 --warm-up 2 --nodes 200 --only granted batches --json",
        (
            Figure("cpu_us_per_lease", 0.07),
            Figure("cpu_ratio_to_bare", 0.1, more_is_better=True),
            Figure("decide_us_per_lease", 0.12),
            Figure("leases_per_s", 0.15, more_is_better=True),
            Figure("active_per_s", 0.15, more_is_better=True),
            Figure("batch_items_per_s", 0.15, more_is_better=True),
            Figure("first_p99_ms", 0.5),
            Figure("rss_mb", 0.04),
        ),
    ),
    Bench(
        "recover",
        ("bench/recover.py",),
        "--leases 20000 --json",
        "--leases 5000 --json",
        (
            Figure("serving_s", 0.15),
            Figure("replay_ms", 0.15),
            Figure("rss_mb", 0.04),
            Figure("journal_mb", 0.05),  # records are the same; groups end pages, and their number is the turns'
            Figure("cpu_s", 0.1),
        ),
    ),
    Bench(
        "agents",
        ("bench/agents.py",),
        "--agents 600 --devices 4 --processes 1 --seconds 6 --storm --json",
        "--agents 200 --devices 4 --processes 1 --seconds 5 --json",
        (
            Figure("cpu_cores", 0.15),
            Figure("cpu_cores_with_launcher", 0.15),
            Figure("rss_mb", 0.04),
            Figure("all_ready_s", 0.2),
            Figure("allocate_p99_ms", 0.5),
            Figure("storm_coordinator_cpu_s", 0.15),
        ),
    ),
    Bench(
        "queueing",
        ("bench/queueing.py", "bench/queue.py"),
        "--jobs 1200 --policies fair_share --trace {jobs} --json",
        "--jobs 500 --policies fair_share --trace {jobs} --json",
        (
            Figure("*.useful", 0.01, more_is_better=True),
            Figure("*.jain", 0.02, more_is_better=True),
            Figure("*.turn_cpu_p99_ms", 0.3),
            Figure("cpu_s", 0.1),
        ),
    ),
    Bench(
        "kube",
        ("bench/kube.py",),
        "--pods 400 --filters 100 --follow 5000 --seconds 4 --warm-up 3 --json",
        "--pods 150 --filters 50 --follow 2000 --seconds 2 --warm-up 2 --json",
        (
            Figure("extender_ms_per_pod", 0.1),
            Figure("coordinator_ms_per_pod", 0.1),
            Figure("pods_bound_per_s", 0.15, more_is_better=True),
            Figure("filter_p99_ms_1000", 0.3),
            Figure("gang_512_s", 0.2),  # earlier ones bound members while others were still being placed
            Figure("follow_cores", 0.15),
            Figure("follow_rss_mb", 0.04),
        ),
    ),
    Bench(
        "remote",
        ("bench/remote.py",),
        "--device-only --rounds 7 --json",
        "--device-only --rounds 3 --json",
        (
            Figure("issue_us", 0.12),
            Figure("issue_grad_us", 0.12),
            Figure("transformer_eager_ratio", 0.15),
            Figure("mlp_ratio", 0.15),
            Figure("eager_bytes_per_step", 0.01),
            Figure("waits_per_step", 0.0),
            Figure("probe_passed", 0.0, more_is_better=True),
        ),
        # Earlier ones went over a socket, which the threads of gRPC were not beside.
        shared=True,
    ),
)


class LeftOutError(Exception):
    """A checkout has no such bench, or not with these flags."""


def run(bench: Bench, checkout: Checkout, flags: str, scratch: Path) -> dict[str, float]:
    """Its figures of one run, by name, and the processor time of all its processes as `cpu_s`.

    Raises:
        LeftOutError: this checkout has no such bench.
        RuntimeError: it failed.
    """
    script = script_of(bench, checkout, flags)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    home = scratch / f"home-{checkout.name}"
    home.mkdir(exist_ok=True)
    with (scratch / "errors").open("w+") as errors, (scratch / "output").open("w+") as output:
        # In a group of its own, so that a bench which is stopped takes what it started along.
        popen = subprocess.Popen(
            [str(checkout.python), str(script), *flags.format(jobs=scratch).split()],
            cwd=checkout.root,
            env=checkout.environment(home),
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = popen.wait(BENCH_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not done in {BENCH_WITHIN_S:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
        output.seek(0)
        errors.seek(0)
        lines, said = output.read().splitlines(), errors.read()
    if code or not lines:
        raise RuntimeError(said.strip().splitlines()[-1][:300] if said.strip() else f"exit code {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(lines[-1])
    found["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    values = {figure.path: _value(found, figure.path) for figure in bench.figures}
    return {path: value for path, value in values.items() if value is not None}


def script_of(bench: Bench, checkout: Checkout, flags: str) -> Path:
    """Its script in a checkout.

    Raises:
        LeftOutError: the checkout has none, or none with these flags.
    """
    if bench.shared:
        return ROOT / bench.scripts[0]
    script = next((path for name in bench.scripts if (path := checkout.root / name).is_file()), None)
    if script is None:
        raise LeftOutError("no such bench")
    # A bench may be a few lines before another file, which then has the flags.
    known = "".join(path.read_text() for path in (script, script.with_name(f"_{bench.name}.py")) if path.is_file())
    missing = [word for word in flags.split() if word.startswith("--") and f'"{word}"' not in known]
    if missing:
        raise LeftOutError(f"without {' '.join(missing)}")
    return script


def _value(found: Any, path: str) -> float | None:  # noqa: ANN401 - JSON
    """The field; `*` is the only object there is."""
    for name in path.split("."):
        if name == "*":
            found = next((value for value in found.values() if isinstance(value, dict)), None)
        else:
            found = found.get(name) if isinstance(found, dict) else None
        if found is None:
            return None
    return float(found)


@dataclass(slots=True)
class Comparison:
    """What has been read of both sides so far."""

    values: dict[str, dict[str, list[float]]]
    """Figure -> side -> a value a round."""
    left_out: dict[str, str]
    failed: dict[str, str]
    took_s: dict[str, float] = field(default_factory=dict)
    """Bench -> seconds of all its runs."""

    def ratios(self) -> dict[str, dict[str, float]]:
        """Of each figure that both sides have: how many times worse."""
        found = {}
        for bench in BENCHES:
            for figure in bench.figures:
                sides = self.values.get(f"{bench.name}.{figure.path}", {})
                base, head = sides.get("base", []), sides.get("head", [])
                worse = [_ratio(*pair, figure) for pair in zip(base, head, strict=False)]
                if worse:
                    found[f"{bench.name}.{figure.path}"] = {
                        "median": round(statistics.median(worse), 3),
                        "low": round(min(worse), 3),
                        "high": round(max(worse), 3),
                        "base": round(statistics.median(base), 3),
                        "head": round(statistics.median(head), 3),
                        "loss": figure.loss,
                    }
        return found


def _ratio(base: float, head: float, figure: Figure) -> float:
    better, worse = (head, base) if figure.more_is_better else (base, head)
    return worse / better if better else 1.0 + (worse > 0)


def slower(ratios: dict[str, dict[str, float]]) -> list[str]:
    """The figures that lost more than is allowed, and in every round something."""
    return [name for name, ratio in ratios.items() if ratio["median"] > 1 + ratio["loss"] and ratio["low"] > 1]


def compare(checkouts: dict[str, Checkout], options: argparse.Namespace, scratch: Path) -> Comparison:
    """All rounds of all benches."""
    comparison = Comparison({}, {}, {})
    chosen = [bench for bench in BENCHES if not options.only or bench.name in options.only]
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(chosen) * options.rounds * len(checkouts))
        for number, bench in ((number, bench) for number in range(options.rounds) for bench in chosen):
            flags = bench.quick if options.quick else bench.flags
            taken: dict[str, dict[str, float]] = {}
            for side in ("base", "head") if number % 2 == 0 else ("head", "base"):
                progress.update(bar, description=f"{bench.name} of {side}, round {number + 1}")
                if bench.name not in comparison.left_out and bench.name not in comparison.failed:
                    began = time.monotonic()
                    try:
                        taken[side] = run(bench, checkouts[side], flags, scratch)
                    except LeftOutError as reason:
                        comparison.left_out[bench.name] = f"{side}: {reason}"
                    except RuntimeError as reason:
                        where = comparison.failed if side == "head" else comparison.left_out
                        where[bench.name] = f"{side}: {reason}"
                    spent_s = comparison.took_s.get(bench.name, 0.0) + time.monotonic() - began
                    comparison.took_s[bench.name] = round(spent_s, 1)
                progress.advance(bar)
            if len(taken) == len(checkouts):
                for side, values in taken.items():
                    for path, value in values.items():
                        comparison.values.setdefault(f"{bench.name}.{path}", {}).setdefault(side, []).append(value)
    return comparison


def write_jobs(folder: Path) -> None:
    """A list of jobs for the bench of queues, in the form of the Philly-derived one: more work than the pool has."""
    rng = random.Random(1)
    lines, now_s = ["vc,submit_s,num_gpu,est_duration_s"], 0
    for _ in range(2_000):
        now_s += int(rng.expovariate(1 / 30))
        width = rng.choices((1, 2, 4, 8, 16, 32), (60, 12, 10, 12, 4, 2))[0]
        duration_s = int(rng.lognormvariate(8, 1.4))
        lines.append(f"{rng.randrange(10)},{now_s},{width},{duration_s}")
    with gzip.open(folder / "gavel_msr_seed0_jobs.csv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")


def show(ratios: dict[str, dict[str, float]], comparison: Comparison, console: Console) -> None:
    """The table for people."""
    table = Table("figure", "base", "head", "times worse", "of the rounds", "allowed")
    bad = set(slower(ratios))
    for name, ratio in ratios.items():
        style = "red" if name in bad else "green" if ratio["high"] < 1 else ""
        spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        values = f"{ratio['base']:g}", f"{ratio['head']:g}", f"{ratio['median']:.2f}"
        table.add_row(name, *values, spread, f"{1 + ratio['loss']:.2f}", style=style)
    console.print(table)
    for title, reasons in (("left out", comparison.left_out), ("failed", comparison.failed)):
        for name, reason in reasons.items():
            console.print(f"{title}: {name}: {reason}", markup=False)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does, so that the worktree and the processes go."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> int:
    """Compare; 1 where something is slower or fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, help="3, or 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="smaller sizes: under five minutes, and nothing is kept")
    parser.add_argument("--only", nargs="+", choices=[bench.name for bench in BENCHES])
    parser.add_argument("--no-history", action="store_true", help="add no line to bench/history")
    parser.add_argument("--json", action="store_true", help="the last line only on stdout")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 3)
    console, began = Console(stderr=options.json), time.monotonic()
    try:
        names = {"head": described(ROOT, "HEAD"), "base": described(ROOT, options.base)}
        with (
            ending_on_signals(),
            compared(options.base, ROOT) as checkouts,
            tempfile.TemporaryDirectory(prefix="aliquot-bench-") as folder,
        ):
            write_jobs(Path(folder))
            comparison = compare(checkouts, options, Path(folder))
    except CheckoutError as error:
        sys.exit(f"error: {error}")
    ratios = comparison.ratios()
    worse = slower(ratios)
    show(ratios, comparison, console)
    git = ["git", "-C", str(ROOT)]
    changed = subprocess.run([*git, "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    if options.quick or options.only or options.rounds < 3 or options.no_history or changed:
        console.print("not kept in bench/history: that takes a whole run of three rounds, and a clean working tree")
    else:
        show_date = [*git, "show", "-s", "--format=%cI", "HEAD"]
        date = subprocess.run(show_date, check=True, capture_output=True, text=True).stdout.strip()
        history.keep({"date": date, **names, "rounds": options.rounds, "ratios": ratios})
    result = {
        "ok": not worse and not comparison.failed,
        **names,
        "rounds": options.rounds,
        "took_s": round(time.monotonic() - began),
        "benches_s": comparison.took_s,
        "slower": worse,
        "failed": comparison.failed,
        "left_out": comparison.left_out,
        "ratios": ratios,
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
