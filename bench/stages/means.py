"""What stages share: a card or why there is none, programs that answer with a document, a pool of this machine."""

# ruff: noqa: PLC0415 - a stage says what is missing, instead of failing to be imported

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.lib.hardware_lease import Bench, ended_after, missing, plain_environment

if TYPE_CHECKING:
    from aliquot.cli.localpool import LocalPool

GIB = 1 << 30
PARTLY = "ALIQUOT_STAGE_PARTLY"
"""A variable: the file that takes what has been found so far."""
SIMULATED = "ALIQUOT_SIMGPU"


class NotRun(Exception):
    """A stage can't be had here; why."""


@dataclass(frozen=True, slots=True)
class Card:
    """The first card of this machine, and a scratch folder."""

    scratch: Path
    rehearse: bool

    def bench(self, lease_bytes: int = 8 * GIB) -> Bench:
        """The means of `bench/hardware.py` on it. Raises `NotRun`."""
        try:
            return Bench(self.scratch, lease_bytes)
        except Exception as error:
            raise NotRun(f"there is no card that NVML can read: {error}") from error

    def require_torch(self) -> None:
        """Raises `NotRun` where PyTorch has no card to compute on, and this is no rehearsal."""
        problem = missing("torch")
        if problem and not (self.rehearse and find_spec("torch")):
            raise NotRun(problem)

    @property
    def device(self) -> dict[str, str]:
        """The variables by which programs know what to compute on, and whether figures matter."""
        return {"CARD": "cpu", "REHEARSAL": "1"} if self.rehearse else {"CARD": "cuda", "REHEARSAL": ""}

    def partly(self, found: Mapping[str, Any]) -> None:
        """Note what has been found, in case that the rest takes too long."""
        if PARTLY in os.environ:
            Path(os.environ[PARTLY]).write_text(json.dumps(found, default=str) + "\n", encoding="utf-8")

    @contextlib.contextmanager
    def pool(self, **settings: str) -> Iterator[LocalPool]:
        """A coordinator, and an agent of this machine's own cards, which may have other settings. Raises `NotRun`."""
        from aliquot.cli.localpool import Layout, LocalPool, PoolSetup, require_pool
        from aliquot.common.errors import AliquotError

        self.bench()
        # What serves leases runs as who runs this: others may not enter these folders.
        variables = {"ALIQUOT_AGENT_HOSTING_USER": str(os.geteuid())} | settings
        if SIMULATED in os.environ:
            variables |= {SIMULATED: os.environ[SIMULATED], "ALIQUOT_SIMGPU_BACKED": "1"}
        plan = PoolSetup(
            real=True,
            listen="127.0.0.1:0",
            metrics_port=0,
            agent_metrics_port=0,
            agent_variables=tuple(variables.items()),
        )
        try:
            require_pool()
        except AliquotError as error:
            raise NotRun(error.explain()) from error
        with LocalPool(Layout.of(self.scratch / "pool"), plan) as pool:
            pool.start()
            yield pool


Run = Callable[[Card], dict[str, Any]]


def command_of(program: str) -> list[str]:
    """To run this text."""
    return [sys.executable, "-c", textwrap.dedent(program)]


def run_program(program: str, variables: Mapping[str, str], timeout_s: float = 180.0) -> dict[str, Any]:
    """The last document that a program prints, or how it failed."""
    return run_command(command_of(program), plain_environment(variables), timeout_s)


def run_command(command: Sequence[str], environment: Mapping[str, str], timeout_s: float = 180.0) -> dict[str, Any]:
    """The same of a command."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done within {timeout_s:g} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    return {"failed": f"exit {done.returncode}", "stdout": lines[-1:], "stderr": done.stderr[-1500:]}


class Talking:
    """A program that prints a document a line, and goes on by a word on its standard input. It ends with its block."""

    def __init__(
        self,
        program: str,
        environment: Mapping[str, str],
        within_s: float = 240.0,
        start: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
    ) -> None:
        """`start`: as a lease has it, too."""
        self.process = start(
            command_of(program),
            env=dict(environment),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._timer = ended_after(self.process, within_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill it if it still runs."""
        self._timer.cancel()
        self.process.kill()
        self.process.wait()

    def next(self) -> dict[str, Any]:
        """Its next document; what it said instead, if it ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        assert self.process.stderr is not None
        return {"failed": f"exit {self.process.wait()}", "stderr": self.process.stderr.read()[-1500:]}

    def say(self, word: str = "go") -> None:
        """Let it go on; nothing if it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
