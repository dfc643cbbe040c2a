"""The transcripts of the README and of every page that shows one: each command is run, and answers as it is shown.

A transcript is a fenced block in which some `$ command` is followed by lines of its answer. Ids, addresses, ages, sizes
that are measured and tiers differ from machine to machine; words, heads of tables and their order do not.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aliquot.cli.localpool import Layout, PoolRecord
from tests.cli.conftest import PROGRAM

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"docs/autoscaling.md": "a cluster's: `tests/kube/scaling` runs `aliquot autoscale`"}
UNSTEADY = (
    (r"\bl-[0-9a-z]{13}\b", "LEASE"),
    (r"\bGPU-[0-9a-f…-]+", "GPU"),
    (r"\bnode-\d+\b", "NODE"),
    (r"\b(?:https?://)?127\.0\.0\.1:\d+\S*", "ADDRESS"),
    (r"\b(?:driver|preload|watchdog|mps)\b", "TIER"),
    (r"\b\d+(?:ms|s|m)\b", "TIME"),
    (r"(?<=Gi )\s*(?:–|\d+(?:\.\d+)?[A-Z]i?B?)(?=\s)", " USED"),
    (r"─+", "─"),
    (r"\s+", " "),
)
LEASE = re.compile(r"\bl-[0-9a-z]{13}\b")


class Step(NamedTuple):
    """A command as it is shown, and the lines of its answer."""

    command: str
    answer: tuple[str, ...]


def transcripts() -> dict[str, list[list[Step]]]:
    """By page."""
    found: dict[str, list[list[Step]]] = {}
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            if not block.startswith("$ "):
                continue
            parts = [part.rstrip().split("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
            steps = [Step(re.split(r"\s{2,}#", head)[0], tuple(filter(None, rest))) for head, *rest in parts]
            if any(step.answer for step in steps):
                found.setdefault(str(page.relative_to(ROOT)), []).append(steps)
    return found


def shape(line: str) -> str:
    """What of a line is the same everywhere."""
    for pattern, word in UNSTEADY:
        line = re.sub(pattern, word, line)
    return line.strip()


@pytest.fixture
def place(without_pytorch: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A reader's machine: nothing of aliquot is set, and a program to run is there."""
    for name in list(os.environ):
        if name.startswith("ALIQUOT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ALIQUOT_COORDINATOR", "")  # and as it was afterwards, whatever `run` makes of it
    root = Path(tempfile.mkdtemp(prefix="aq-"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(root))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import os\nassert os.environ['ALIQUOT_LEASE_ID']\n")
    yield root
    record = PoolRecord.read(Layout.of(None))
    if record is not None:
        record.stop(10)
    shutil.rmtree(root, ignore_errors=True)


def run(command: str, known: dict[str, str]) -> list[str]:
    """Its answer, line by line; a pool is left running beside the reader's terminal."""
    for shown, real in known.items():
        command = command.replace(shown, real)
    words = shlex.split(command)
    assert words[0] == "aliquot"
    if words[1] == "up":
        words += ["--detach", "--no-console", "--listen", "127.0.0.1:0", "--metrics-port", "0"]
    done = subprocess.run(
        [*PROGRAM, *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stdout
    if words[1] == "up":
        record = PoolRecord.read(Layout.of(None))
        assert record is not None, done.stdout
        os.environ["ALIQUOT_COORDINATOR"] = record.coordinator
    return done.stdout.splitlines()


def test_every_page_with_a_transcript_is_run_here_or_elsewhere() -> None:
    assert transcripts().keys() == {"README.md", *ELSEWHERE}


def test_the_readme_as_a_reader_types_it(place: Path) -> None:
    known: dict[str, str] = {}
    for step in [step for block in transcripts()["README.md"] for step in block]:
        lines = run(step.command, known)
        at = 0
        for shown in step.answer:
            found = next((n for n, line in enumerate(lines[at:], at) if shape(line) == shape(shown)), None)
            assert found is not None, f"$ {step.command}\n{shown}\nis not in\n" + "\n".join(lines)
            for old, new in zip(LEASE.findall(shown), LEASE.findall(lines[found]), strict=True):
                known.setdefault(old, new)
            at = found + 1
        assert step.answer or not any(line.startswith("error") for line in lines), lines
