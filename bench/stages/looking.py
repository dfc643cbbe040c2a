"""Stages that look: the doctor, the kernel's log, and the parts of `bench/hardware.py`."""

# ruff: noqa: PLC0415

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.lib.hardware_lease import missing, plain_environment
from bench.stages.means import Card, NotRun

KMSG = Path("/dev/kmsg")
_CHUNK_BYTES = 8192
_LATEST_SHOWN = 5
_HARDWARE_S = 480
"""Below the time of a stage, so that what was found until then is told."""


def doctor(card: Card) -> dict[str, Any]:
    """`aliquot doctor` proves each tier on the card."""
    card.bench()
    command = [sys.executable, "-m", "aliquot.cli", "doctor", "--json", "--state-dir", str(card.scratch / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=480, check=False)
    findings = json.loads(done.stdout or "[]")
    if not findings:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr[-1500:]}")
    marks = Counter(each["mark"] for each in findings)
    return {"exit": done.returncode, "marks": dict(marks), "findings": findings}


def kernel_log(_: Card) -> dict[str, Any]:
    """The kernel's log can be read, and what of it the agent would take for an event of a card."""
    from aliquot.agent.core.kernel_log import parse

    try:
        log = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise NotRun(f"{KMSG} can't be read: {error}") from error
    begun = time.monotonic()
    records = overwritten = 0
    of_the_driver: list[str] = []
    events: list[str] = []
    try:
        while True:
            try:
                raw = os.read(log, _CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                overwritten += 1
                continue
            records += 1
            line = raw.decode("utf-8", "replace")
            if "NVRM" in line or "nvidia" in line:
                of_the_driver.append(line.partition("\n")[0][:200])
            if (event := parse(line)) is not None:
                events.append(repr(event))
    finally:
        os.close(log)
    return {
        "records": records,
        "overwritten": overwritten,
        "read_ms": round((time.monotonic() - begun) * 1e3, 1),
        "of_the_driver": len(of_the_driver),
        "latest_of_the_driver": of_the_driver[-_LATEST_SHOWN:],
        "events": events[-_LATEST_SHOWN:],
    }


def hardware(card: Card) -> dict[str, Any]:
    """Every way of taking memory, steps of pools, racing and killed processes, programs without the library."""
    return _sections(card, "discovery", "ways", "pool_steps", "several", "bare", "mps")


def frameworks(card: Card) -> dict[str, Any]:
    """PyTorch and CuPy, with each of their allocators, fill a lease."""
    return _sections(card, "torch", "cupy")


def slowdown(card: Card) -> dict[str, Any]:
    """What each tier costs a small training loop."""
    if problem := missing("torch"):
        raise NotRun(problem)
    return _sections(card, "slowdown")


def _sections(card: Card, *names: str) -> dict[str, Any]:
    card.bench()
    output = card.scratch / "hardware.json"
    only = [word for name in names for word in ("--only", name)]
    script = Path(__file__).resolve().parents[1] / "hardware.py"
    command = [sys.executable, str(script), "--output", str(output), *only]
    late = False
    try:
        done = subprocess.run(
            command, env=plain_environment(), stdout=subprocess.DEVNULL, timeout=_HARDWARE_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{script.name} ended with {done.returncode}")
    except subprocess.TimeoutExpired:
        late = True
    found = json.loads(output.read_text("utf-8")) if output.exists() else {}
    if late:
        found["not done in time"] = [name for name in names if name not in found]
    reasons = [
        found[name]["not run"] for name in names if isinstance(found.get(name), dict) and "not run" in found[name]
    ]
    if len(reasons) == len(names):
        raise NotRun("; ".join(reasons))
    broken = [name for name in names if isinstance(found.get(name), dict) and "failed" in found[name]]
    return found | ({"status": "failed", "why": f"failed: {', '.join(broken)}"} if broken else {})
