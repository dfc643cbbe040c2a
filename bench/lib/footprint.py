"""What each program loads and uses when it has started: modules of ours, processor time, resident memory.

    python bench/lib/footprint.py

Run by the interpreter of a checkout, with nothing of the bench but this file, so that it can be run on any. The last
line is one JSON object. A program that can't be started here is left out, with the reason on stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_WATCHED = """
import json, os, runpy, sys, threading
def tell():
    sys.stdin.readline()
    ours = sum(name.startswith("aliquot.") and not name.startswith("aliquot.v1") for name in list(sys.modules))
    print("modules", json.dumps(ours), flush=True)
threading.Thread(target=tell, daemon=True).start()
name = sys.argv[1]
sys.argv = sys.argv[1:]
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""
_SAID = "print(sum(n.startswith('aliquot.') and not n.startswith('aliquot.v1') for n in __import__('sys').modules))"
_SETTLED_S = 1.5
"""After it has said that it is ready, what a program still does at its start: threads, first polls, collections."""
_WITHIN_S = 60.0
_STARTS = 2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Started:
    """A program whose modules can be asked for."""

    def __init__(self, module: str, *arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.popen = subprocess.Popen(
            [sys.executable, "-c", _WATCHED, module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def line(self, word: str) -> str:
        """What follows this word in the first line of stdout that begins with it.

        Raises:
            RuntimeError: it ended without.
        """
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise RuntimeError(self.log.read_text()[-500:])

    def logged(self, word: str) -> None:
        """Wait until its log has this.

        Raises:
            RuntimeError: it ended without.
        """
        until = time.monotonic() + _WITHIN_S
        while word not in self.log.read_text():
            if self.popen.poll() is not None or time.monotonic() > until:
                raise RuntimeError(self.log.read_text()[-500:])
            time.sleep(0.05)

    def figures(self, name: str) -> dict[str, float]:
        """Modules, processor time so far, resident memory."""
        time.sleep(_SETTLED_S)
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text().rpartition(")")[2].split()
        rss_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()
        return {
            f"{name}_modules": int(self.line("modules ")),
            f"{name}_cpu_s": (int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
            f"{name}_rss_mb": round(rss_kb / 1024, 1),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.wait()


def coordinator_and_console(folder: Path) -> dict[str, float]:
    """An idle coordinator with defaults, and a console before it."""
    flags = ("--listen", "127.0.0.1:0", "--metrics-port", "0", "--journal", f"sqlite:{folder / 'pool.db'}")
    with Started("aliquot.coordinator", *flags, log=folder / "coordinator.log") as started:
        address = json.loads(started.line("ready "))["address"]
        found = started.figures("coordinator")
        with _told("console"):
            flags = ("--port", "0", "--coordinator", address, "--log-level", "warning")
            with Started("aliquot.console", "--metrics-port=0", *flags, log=folder / "console.log") as console:
                console.line("ready ")
                found |= console.figures("console")
        with _told("joined"):
            found |= joined(folder, address)
    return found


def joined(folder: Path, address: str) -> dict[str, float]:
    """An agent on eight simulated cards of NVIDIA's that has joined the pool and has a session."""
    from aliquot import simgpu  # noqa: PLC0415 - only where there is one

    token = str(folder / "pool.db.access/admin.token")
    invite = ("node", "invite", "bench", "--json", "-c", address, "--address", address, "--token-file", token)
    code = f"from aliquot.cli.main import main\nmain({invite!r})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout
    string = next(word.strip("'\",") for word in said.split() if word.strip("'\",").startswith("alq1."))
    with simgpu.create(folder / "cards", ["A100-80"] * 8) as scenario:
        flags = ("--node-name", "bench", "--state-dir", str(folder / "node"))
        environment = simgpu.environment(scenario.path)
        command = [sys.executable, "-m", "aliquot.agent", "join", *flags, string]
        subprocess.run(command, capture_output=True, check=True, env={**os.environ, **environment})
        places = ("--metrics-port", "0", "--log-json", "--socket", str(folder / "node.sock"))
        log = folder / "node.log"
        with Started("aliquot.agent", *flags, *places, log=log, environment=environment) as started:
            started.logged('"session ')
            return started.figures("joined")


def agent(folder: Path) -> dict[str, float]:
    """An agent on eight simulated cards of NVIDIA's, whose coordinator is away."""
    from aliquot import simgpu  # noqa: PLC0415 - only where there is one

    with simgpu.create(folder / "gpus", ["A100-80"] * 8) as scenario:
        flags = ("--node-name", "bench", "--metrics-port", "0", "--log-json", "--coordinator", "127.0.0.1:1")
        places = ("--state-dir", str(folder / "state"), "--socket", str(folder / "agent.sock"))
        environment = simgpu.environment(scenario.path)
        with Started("aliquot.agent", *flags, *places, log=folder / "agent.log", environment=environment) as started:
            started.logged("agent started")
            return started.figures("agent")


def command_line(folder: Path) -> dict[str, float]:
    """`aliquot --help`."""
    code = f"from aliquot.cli.main import main\ntry: main(['--help'])\nfinally: {_SAID}"
    command = [sys.executable, "-c", code]
    with (folder / "cli").open("w+") as output:
        popen = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(popen.pid, 0)
        popen.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().split()
    return {
        "cli_modules": int(said[-1]),
        "cli_cpu_s": usage.ru_utime + usage.ru_stime,
        "cli_rss_mb": round(usage.ru_maxrss / 1024, 1),
    }


class _told(contextlib.suppress):  # noqa: N801 - as suppress
    """Leaves a program out, and says so."""

    def __init__(self, name: str) -> None:
        super().__init__(Exception)
        self.name = name

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            print(f"{self.name}: {error}", file=sys.stderr)
        return bool(super().__exit__(kind, error, trace))  # type: ignore[arg-type]


def main() -> None:
    """Start each twice: the lower of each figure, as nothing makes a start cheaper than it is."""
    every: dict[str, list[float]] = {}
    for _ in range(_STARTS):
        for program in (coordinator_and_console, agent, command_line):
            with tempfile.TemporaryDirectory() as folder, _told(program.__name__):
                for name, value in program(Path(folder)).items():
                    every.setdefault(name, []).append(value)
    print(json.dumps({name: round(min(values), 3) for name, values in every.items()}))


if __name__ == "__main__":
    main()
