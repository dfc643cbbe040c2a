"""Clean environments to install distributions of this tree into, without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


class Clean:
    """A virtual environment with one wheel, and with what it requires and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"

    @classmethod
    def make(cls, folder: Path, wheel: Path, *extras: str) -> Clean:
        """Create it."""
        venv.create(folder, with_pip=False, symlinks=True)
        made = cls(folder)
        made._pip("install", "--quiet", "--no-deps", "--no-index", str(wheel))
        (site,) = (folder / "lib").glob("python*/site-packages")
        for name in sorted(_required("aliquot", extras)):
            _borrow(metadata.distribution(name), site)
        made._pip("check")
        return made

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A program of it (or `python`), with none of this environment's packages or settings."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "ALIQUOT_", "COV"))}
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**kept, "HOME": str(self.folder), **(env or {})},
            timeout=120,
        )

    def _pip(self, *arguments: str) -> None:
        _run([sys.executable, "-m", "pip", "--python", str(self.bin / "python"), *arguments])


def _borrow(distribution: metadata.Distribution, site: Path) -> None:
    """Install what is installed here already, file by file, as links."""
    here = Path(str(distribution.locate_file(""))).resolve()
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file))).resolve()
        if source.is_file() and source.is_relative_to(here) and source.suffix != ".pyc":
            target = site / source.relative_to(here)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(source)


def _required(name: str, extras: tuple[str, ...]) -> set[str]:
    """Names of all distributions that one needs, directly or not."""
    found: set[str] = set()
    open_: list[tuple[str, tuple[str, ...]]] = [(name, extras)]
    seen = set(open_)
    while open_:
        of, wanted = open_.pop()
        for text in metadata.requires(of) or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                continue
            needed = (re.sub(r"[-_.]+", "-", requirement.name).lower(), tuple(sorted(requirement.extras)))
            if needed not in seen:
                seen.add(needed)
                open_.append(needed)
                found.add(needed[0])
    return found - {name}


def _run(command: list[str]) -> None:
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
