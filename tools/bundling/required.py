"""What a Python on another machine needs: requirement lines, their wheels, and whether nothing is missing.

pip can download for another Python, but decides what is needed there by the Python that it runs on itself. So what it
brought is looked through once more by the other's markers: what is missing is asked for, what is not needed goes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.image import platforms

PIP = "pip>=25"
"""Comes along, since a machine's own may be missing, or too old to know the wheels' tags."""
_OWN = "aliquot"
_ROUNDS_MAX = 5


@dataclass(frozen=True, slots=True)
class Target:
    """A Python on a platform."""

    python: str
    platform: str
    """The newest tag that runs there: `manylinux_2_28_x86_64`."""
    machine: str

    @classmethod
    def of(cls, python: str, platform: str) -> Target:
        """Raises SystemExit for what names no platform."""
        found = re.fullmatch(r"manylinux_2_\d+_(x86_64|aarch64)", platform)
        if found is None or not re.fullmatch(r"3\.\d+", python):
            raise SystemExit(
                f"error: PYTHON={python} PLATFORM={platform}: write, say, PYTHON=3.12 PLATFORM=manylinux_2_28_x86_64"
            )
        return cls(python, platform, found[1])

    def wants(self, requirement: Requirement, extras: Iterable[str]) -> bool:
        """Whether a requirement holds there."""
        if requirement.marker is None:
            return True
        environment = {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }
        return any(requirement.marker.evaluate(environment | {"extra": extra}) for extra in ("", *extras))


def requirements(pyproject: Path, extras: Sequence[str], without: Sequence[str]) -> list[str]:
    """Lines for pip: our own distribution, bare, and what these extras of it ask for, but for some."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    if unknown := [extra for extra in extras if extra not in optional]:
        raise SystemExit(f"error: aliquot has no {', '.join(unknown)}; it has {', '.join(sorted(optional))}")
    found = [f"{_OWN}=={project['version']}"]
    wanted = list(extras)
    for extra in wanted:
        for line in optional[extra]:
            requirement = Requirement(line)
            if requirement.name == _OWN:
                wanted += [each for each in sorted(requirement.extras) if each not in wanted]
            elif requirement.name not in without and line not in found:
                found.append(line)
    return found


def fetch(lines: Sequence[str], target: Target, wheels: Path) -> None:
    """Put the wheels there of everything that these lines need, beside ours, which is there. Raises SystemExit."""
    asked = [PIP, *(line for line in lines if not line.startswith(f"{_OWN}=="))]
    (own,) = wheels.glob(f"{_OWN}-*.whl")
    asked += [line for line in _required(own) if target.wants(Requirement(line), ())]
    missing: set[str] = set()
    for _ in range(_ROUNDS_MAX):
        _download(asked, target, wheels)
        needed, missing = closure([PIP, *lines], target, wheels)
        if not missing:
            for path in wheels.glob("*.whl"):
                if _name_of(path) not in needed:
                    path.unlink()
            return
        asked += sorted(missing)
    raise SystemExit(f"error: no wheels of {', '.join(sorted(missing))} for Python {target.python}")


def closure(lines: Iterable[str], target: Target, wheels: Path) -> tuple[set[str], set[str]]:
    """The names of what these lines need there, and the requirements that no wheel of the folder meets."""
    there = {_name_of(path): path for path in wheels.glob("*.whl")}
    needed: set[str] = set()
    missing: set[str] = set()
    open_ = [each for each in map(Requirement, lines) if target.wants(each, ())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while open_:
        requirement = open_.pop()
        name = canonicalize_name(requirement.name)
        path = there.get(name)
        if path is None or not requirement.specifier.contains(path.name.split("-")[1], prereleases=True):
            missing.add(str(requirement).partition(";")[0].strip())
            continue
        needed.add(name)
        key = name, frozenset(requirement.extras)
        if key not in seen:
            seen.add(key)
            below = map(Requirement, _required(path))
            open_ += [each for each in below if target.wants(each, requirement.extras)]
    return needed, missing


def _download(lines: Sequence[str], target: Target, wheels: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels), "--only-binary", ":all:"]
    command += ["--implementation", "cp", "--python-version", target.python]
    for each in (*platforms(target.platform), "any"):
        command += ["--platform", each]
    done = subprocess.run([*command, *lines], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"error: pip can't download all of it:\n{done.stderr[-3000:]}")


def _required(wheel: Path) -> list[str]:
    (found,) = metadata.distributions(path=[str(wheel)])
    return list(found.requires or ())


def _name_of(wheel: Path) -> str:
    return canonicalize_name(wheel.name.split("-")[0])
