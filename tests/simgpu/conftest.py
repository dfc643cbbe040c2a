"""The simulated machine that these tests run on, and processes in it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aliquot import simgpu

NATIVE = Path(simgpu.__file__).parent / "native"
GIB = 1 << 30
MIB = 1 << 20


class ChildError(Exception):
    """What the code in a child raised; `number` is an NVMLError's value."""

    def __init__(self, kind: str, number: int | None, trace: str) -> None:
        super().__init__(f"{kind}\n{trace}")
        self.kind = kind
        self.number = number


class Child:
    """A Python process on a scenario (see child.py), which runs what it is told."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, code: str, mode: str = "eval") -> None:
        """Sends the code without waiting for its end."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"code": code, "mode": mode}) + "\n")
        self.process.stdin.flush()

    def finish(self) -> Any:
        """The result of what was started."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child has ended: {self.process.poll()}"
        answer = json.loads(line)
        if "error" in answer:
            raise ChildError(answer["error"], answer["number"], answer["trace"])
        return answer["value"]

    def eval(self, code: str) -> Any:
        self.start(code)
        return self.finish()

    def exec(self, code: str) -> None:
        self.start(code, "exec")
        self.finish()

    def kill(self) -> None:
        """Kill -9, and nobody has waited for it yet."""
        self.process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Machine:
    """A scenario with its processes."""

    def __init__(self, scenario: simgpu.Scenario, stack: ExitStack) -> None:
        self.scenario = scenario
        self.environment = simgpu.environment(scenario.path)
        self._stack = stack
        self._nvml: Child | None = None

    def child(self, **variables: str) -> Child:
        started = Child({**self.environment, **variables})
        self._stack.callback(started.close)
        return started

    @property
    def nvml(self) -> Child:
        """A process that only watches, through the real pynvml; `h[i]` are the handles of the GPUs."""
        if self._nvml is None:
            self._nvml = self.child()
            self._nvml.exec("h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]")
        return self._nvml

    def processes(self, index: int = 0) -> dict[int, int | None]:
        """Memory by PID, as NVML has it."""
        rows = self.nvml.eval(f"n.nvmlDeviceGetComputeRunningProcesses_v3(h[{index}])")
        return {row["pid"]: row["usedGpuMemory"] for row in rows}

    def used(self, index: int = 0) -> int:
        """Allocated bytes, without what the driver reserves."""
        return int(self.nvml.eval(f"n.nvmlDeviceGetMemoryInfo(h[{index}], version=n.nvmlMemory_v2)")["used"])

    def error(self, code: str) -> int | None:
        """The NVML error that the code ends with."""
        with pytest.raises(ChildError) as caught:
            self.nvml.eval(code)
        return caught.value.number


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built libraries; builds them where they are missing."""
    if not all((NATIVE / "lib" / name).exists() for name in simgpu.libraries.LIBRARIES):
        if shutil.which("cc") is None or shutil.which("make") is None:
            pytest.skip("needs a C compiler and make")
        with (tmp_path_factory.getbasetemp().parent / "native.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run(["make", "-C", str(NATIVE)], check=True, capture_output=True)
    return simgpu.library_directory()


@pytest.fixture
def make_machine(libraries: Path, tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    with ExitStack() as stack:

        def make(*models: str, **options: Any) -> Machine:
            path = tmp_path / f"scenario-{len(list(tmp_path.iterdir()))}"
            scenario = stack.enter_context(simgpu.create(path, models or ("A100-40", "A100-40"), **options))
            return Machine(scenario, stack)

        yield make


@pytest.fixture
def machine(make_machine: Callable[..., Machine]) -> Machine:
    """Two A100s with 40 GB."""
    return make_machine()
