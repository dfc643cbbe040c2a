"""What is mutated, and the tests of its area."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOTS = ("agent", "client", "common", "console", "coordinator", "kube", "remote")
"""Folders on the path, each with a part of the namespace `aliquot`."""


@dataclass(frozen=True)
class Area:
    """A package, and what is to notice a mistake in it."""

    sources: tuple[str, ...]
    """Patterns below the root."""
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Sources that are written by a tool from others."""

    def files(self) -> list[Path]:
        """Of the sources. Raises ValueError for a pattern that names none: a module was renamed."""
        by_pattern = {pattern: list(ROOT.glob(pattern)) for pattern in self.sources}
        if gone := [pattern for pattern, paths in by_pattern.items() if not paths]:
            raise ValueError(f"no module is named {', '.join(gone)}")
        found = {path for paths in by_pattern.values() for path in paths}
        return sorted(path for path in found if path.relative_to(ROOT).as_posix() not in self.without)


_CORE = "coordinator/aliquot/coordinator/core"
_OF_CORE = ("core", "placement", "preemption", "queueing", "tenancy", "ledger", "maintenance", "golden")
_CLIENT = "client/aliquot/client"
_BACKOFF = "common/aliquot/common/backoff.py"
_JOURNAL = "coordinator/aliquot/coordinator/writing/journal"
_COORDINATOR = "coordinator/aliquot/coordinator"
_OF_CALLERS = ("authentication", "caller", "gate", "permissions", "scopes")
_RULES = tuple(
    f"tests/agent/test_{name}_rules.py" for name in ("accounting", "attribution", "health", "reservation", "watchdog")
)
_OF_CUTS = "tests/enforce/test_mig.py"
AREAS = {
    "core": Area(
        (f"{_CORE}/**/*.py",),
        (*(f"tests/{name}" for name in _OF_CORE), "tests/enforce/test_cut_decisions.py"),
        (f"{_CORE}/placement/price_kernel.py", f"{_CORE}/placement/compiling.py"),
    ),
    "agent-core": Area(
        ("agent/aliquot/agent/core/*.py",),
        (*_RULES, *(f"tests/agent/test_{name}.py" for name in ("polling", "telling", "time_over_limit")), _OF_CUTS),
    ),
    "client": Area(
        (*(f"{_CLIENT}/{name}.py" for name in ("_retrying", "_keeping", "_async/keeper", "_async/calling")), _BACKOFF),
        ("tests/client", "tests/common/test_backoff.py"),
    ),
    "access": Area(
        (
            f"{_CORE}/books/access.py",
            f"{_CORE}/books/roles.py",
            f"{_COORDINATOR}/logins/*.py",
            *(f"{_COORDINATOR}/rpc/{name}.py" for name in _OF_CALLERS),
        ),
        ("tests/access", "tests/logins"),
    ),
    "console": Area(("console/aliquot/console/**/*.py",), ("tests/console", "tests/use")),
    "hosting": Area(
        ("agent/aliquot/agent/hosting/*.py",), ("tests/agent/test_hosting.py", "tests/agent/test_hosting_ahead.py")
    ),
    "kube": Area(("kube/aliquot/kube/**/*.py",), ("tests/kube",)),
    "remote-server": Area(("remote/aliquot/remote/server/*.py",), ("tests/remote_serving", "tests/remote")),
    "store": Area(
        ("agent/aliquot/agent/disk/*.py",),
        tuple(f"tests/agent/test_{name}.py" for name in ("checkpoint", "power_cuts", "store_files")),
    ),
    "journal": Area(
        (f"{_JOURNAL}/*.py",),
        ("tests/journal",),
        tuple(f"{_JOURNAL}/{name}.py" for name in ("postgres", "pglink", "pgschema", "pgsnapshots")),
    ),
}
"""By the names that `make mutate` knows. The journal in PostgreSQL is tested with real servers, by tests/failover."""


def module_of(path: Path) -> str:
    """The name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] in ROOTS else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def relative(paths: Iterable[Path]) -> list[str]:
    """As reports name them."""
    return [path.relative_to(ROOT).as_posix() for path in paths]
