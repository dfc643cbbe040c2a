"""Tries mutants: each in a process forked from one that has imported what takes long, but nothing of ours.

The child finds the mutated module's source where an import looks first, so that no file is ever changed, whatever
folder it is in, and several can be tried at once.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tools.mutating.areas import ROOT, module_of
from tools.mutating.cover import DESELECTED, Cover
from tools.mutating.mutants import Mutant

HEAVY = ("grpc.aio", "google.protobuf.json_format", "google.rpc.status_pb2", "msgspec", "hypothesis", "yaml", "rich")
ALSO_HEAVY = ("numpy", "numba", "scipy.optimize", "prometheus_client", "pytest_asyncio", "uvloop", "cryptography.x509")
TESTS_MAX = 60
"""So many of the tests that reach a line are asked, the quickest first: a mistake that none of these sees is one."""
TESTS_MAX_S = 20.0
"""Nor are more asked than take so long together: a slow one that would see a mistake is not what people wait for."""
TIMES, LEAST_S = 4, 20
"""A mutant may take so many times the processor that its tests take, and these seconds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    mutant: Mutant
    killed: bool
    how: str
    tests: int


class _Loader(importlib.abc.Loader):
    def __init__(self, code: Any) -> None:
        self._code = code

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)  # noqa: S102 - this is what the tool is for


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, changed."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path = name, path
        self._code = compile(source, str(path), "exec")

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Of that one only."""
        if fullname != self._name:
            return None
        locations = [str(self._path.parent)] if self._path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=_Loader(self._code), submodule_search_locations=locations
        )


def warm_up() -> None:
    """Import what takes long and is not ours."""
    for name in (*HEAVY, *ALSO_HEAVY):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    ours = [name for name in sys.modules if name == "aliquot" or name.startswith("aliquot.")]
    assert not ours, f"a mutant of these would not be seen: {ours}"


def try_all(mutants: Sequence[Mutant], cover: Cover, jobs: int) -> Iterator[Verdict]:
    """As they come."""
    waiting = list(reversed(mutants))
    running: dict[int, tuple[int, Mutant, list[str], float, Path]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            tests = cover.of(mutant.path, mutant.line, TESTS_MAX, TESTS_MAX_S)
            if not tests:
                yield Verdict(mutant, killed=False, how="no test reaches it", tests=0)
                continue
            allowed_s = LEAST_S + TIMES * cover.seconds(tests)
            output = Path(tempfile.mkstemp(prefix="mutant-")[1])
            pid = os.fork()
            if not pid:
                _try(mutant, tests, int(allowed_s), output)
            # A test that waits for ever uses no processor: the clock on the wall, generously, ends it.
            running[os.pidfd_open(pid)] = pid, mutant, tests, time.monotonic() + 6 * allowed_s, output
        ended, _, _ = select.select(list(running), [], [], 1.0)
        for descriptor, (pid, mutant, tests, until_s, output) in list(running.items()):
            if descriptor not in ended and time.monotonic() < until_s:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # it, or what its tests left
            _, status = os.waitpid(pid, 0)
            del running[descriptor]
            os.close(descriptor)
            yield _verdict(mutant, status, tests, output, late=descriptor not in ended)


def _verdict(mutant: Mutant, status: int, tests: Sequence[str], output: Path, *, late: bool) -> Verdict:
    said = output.read_text("utf-8", "replace").splitlines()
    output.unlink()
    if late or os.WIFSIGNALED(status):
        return Verdict(mutant, killed=True, how="does not end", tests=len(tests))
    failed = next((line for line in reversed(said) if line.startswith(("FAILED", "ERROR", "E  "))), "")
    return Verdict(mutant, killed=os.WEXITSTATUS(status) != 0, how=failed[:160], tests=len(tests))


def _try(mutant: Mutant, tests: Sequence[str], allowed_s: int, output: Path) -> None:
    """The child: never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (allowed_s, allowed_s))
        descriptor = os.open(output, os.O_WRONLY | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ["CI"] = "1"
        path = ROOT / mutant.path
        sys.meta_path.insert(0, _Finder(module_of(path), path, mutant.code()))
        arguments = [*DESELECTED, "--assert=plain", "-x", "--tb=line", *tests]
        code = int(pytest.main(arguments))
    except BaseException:  # noqa: BLE001 - the parent reads what it says
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
