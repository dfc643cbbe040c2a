"""Run stages one after another, each in a process of its own; each ends in time and prints one line of JSON.

    python -m bench.stages [STAGE ...] [--results FOLDER] [--seconds 520] [--rehearse]

A line has `stage`, `status` (`ok`, `failed`, `not run`), `took_s`, and `why` or what was found. Whatever a stage
started is ended with it, also what has left its session. `--rehearse` lets PyTorch compute on the processor, for
moments, so that the programs themselves can be tried without a card; its figures say nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.stages import breaking, checkpoint, elsewhere, looking, pools, tenants  # noqa: E402
from bench.stages.means import PARTLY, Card, NotRun, Run  # noqa: E402

STAGES: dict[str, Run] = {
    "doctor": looking.doctor,
    "kernel-log": looking.kernel_log,
    "hardware": looking.hardware,
    "frameworks": looking.frameworks,
    "slowdown": looking.slowdown,
    "demo": pools.demo,
    "poll": pools.poll,
    "tenants": tenants.tenants,
    "mps": breaking.mps,
    "checkpoint": checkpoint.checkpoint,
    "remote": elsewhere.by_torch,
    "cuda": elsewhere.by_cuda,
}
SECONDS = 520.0
"""Of a stage: with the start of this process it is below nine minutes."""
_SUBREAPER = 36
_CHILD = "--in-this-process"


def main() -> int:
    """0: every stage was run or said why not; 1: one failed."""
    parser = argparse.ArgumentParser(prog="run-hardware.sh", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"default: all of {', '.join(STAGES)}")
    parser.add_argument("--results", type=Path, help="a folder for the lines, and what each stage said beside them")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a stage may take (%(default)g)")
    parser.add_argument("--rehearse", action="store_true", help="PyTorch on the processor, for moments")
    parser.add_argument(_CHILD, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.stages) - STAGES.keys()):
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    if options.in_this_process:
        return _here(options.stages[0], rehearse=options.rehearse)
    # Of stages that were killed: their orphans become children of this process, which ends them.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in options.stages or STAGES:
        found = _apart(name, options)
        failed |= found["status"] == "failed"
        line = json.dumps(found)
        print(line, flush=True)
        if options.results is not None:
            with (options.results / "results.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(line + "\n")
    return int(failed)


def _here(name: str, *, rehearse: bool) -> int:
    """A stage, in a scratch folder that goes with it. Its document is the last line of standard output."""
    with tempfile.TemporaryDirectory(prefix=f"aliquot-{name}-", ignore_cleanup_errors=True) as scratch:
        try:
            found = {"status": "ok"} | STAGES[name](Card(Path(scratch), rehearse))
        except NotRun as reason:
            found = {"status": "not run", "why": str(reason)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the next stage can be run
            traceback.print_exc()
            found = {"status": "failed", "why": f"{type(error).__name__}: {error}"}
        print(json.dumps(found, default=str), flush=True)
    return 0


def _apart(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A stage in a process of its own, until it ends or its time is up."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "bench.stages", name, _CHILD, *(["--rehearse"] if options.rehearse else [])]
    with tempfile.TemporaryDirectory(prefix="aliquot-stage-", ignore_cleanup_errors=True) as folder:
        partly = Path(folder) / "partly.json"
        environment = os.environ | {PARTLY: str(partly)}
        out = (options.results or Path(folder)) / f"{name}.out"
        log = out.with_suffix(".log")
        with out.open("wb") as stdout, log.open("wb") as stderr:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment
            )
            found: dict[str, Any]
            try:
                process.wait(options.seconds)
            except subprocess.TimeoutExpired:
                found = {"status": "failed", "why": f"it was not done within {options.seconds:g} s"}
            else:
                found = _last_document(out) or {
                    "status": "failed",
                    "why": f"it ended with {process.returncode}",
                }
            _end_all()
        if found["status"] == "failed":
            found = found | {"partly": _last_document(partly), "said": log.read_text("utf-8", "replace")[-1500:]}
    return {"stage": name, "took_s": round(time.monotonic() - begun, 1)} | found


def _last_document(path: Path) -> dict[str, Any]:
    """Of a file with a document a line; empty: there is none."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text("utf-8", "replace").splitlines() if line.startswith("{")]
    try:
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found


def _end_all() -> None:
    """Kill whatever descends from this process, and wait for it."""
    while children := _children(os.getpid()):
        for pid in children:
            # Its own children become ours, and are killed in the next round.
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
