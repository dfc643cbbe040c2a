"""Checkouts that are compared with one another: each has an environment that finds its own modules, and no others.

An environment is a bare one without packages of its own. It finds, in this order: its own description of the
distribution (entry points), the checkout's source roots, and the libraries that the calling interpreter has. So both
sides use the same libraries, and are loaded in the same way.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMPILE = "import pathlib, hatch_build; hatch_build.compile_native(pathlib.Path.cwd())"


class CheckoutError(RuntimeError):
    """A checkout can't be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A state of the project's files, and the interpreter that runs it."""

    name: str
    root: Path
    python: Path

    def environment(self, home: Path) -> dict[str, str]:
        """Variables of its programs: nothing of whoever calls but where public lists are."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ALIQUOT_", "PYTHON"))}
        traces = {name: os.environ[name] for name in ("ALIQUOT_TRACES",) if name in os.environ}
        return kept | traces | {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_RUNTIME_DIR": str(home)}


def here(root: Path, scratch: Path) -> Checkout:
    """The files as they are in `root`, whose stubs and C parts have been built.

    Raises:
        CheckoutError: no environment can be made.
    """
    return Checkout("head", root, _interpreter(root, scratch / "head"))


@contextlib.contextmanager
def of_commit(commit: str, root: Path, scratch: Path) -> Iterator[Checkout]:
    """A commit, checked out and built in `scratch`, and taken away at the end.

    Raises:
        CheckoutError: git does not know the commit, or it can't be built.
    """
    where = scratch / "base"
    _run(["git", "worktree", "add", "--quiet", "--detach", str(where), commit], root)
    try:
        python = _interpreter(where, scratch / "base-environment")
        # By the calling interpreter, beside which the plugins of protoc are installed.
        _run([sys.executable, "hatch_build.py"], where)
        _run([sys.executable, "-c", _COMPILE], where)
        yield Checkout("base", where, python)
    finally:
        _run(["git", "worktree", "remove", "--force", str(where)], root)


def described(root: Path, *revision: str) -> str:
    """The short name of a commit.

    Raises:
        CheckoutError: git does not know it.
    """
    return _run(["git", "describe", "--always", "--abbrev=8", "--exclude=*", *revision], root).strip()


def _interpreter(root: Path, folder: Path) -> Path:
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], root)
    packages = next((folder / "lib").glob("python*/site-packages"))
    roots = sorted(path.parent for path in root.glob("*/aliquot"))
    libraries = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    lines = [*map(str, roots), str(root), *dict.fromkeys(libraries)]
    (packages / "compared.pth").write_text("".join(f"{line}\n" for line in lines))
    _describe(root, packages)
    return folder / "bin" / "python"


def _describe(root: Path, packages: Path) -> None:
    """What an installation would say of entry points: found before that of the calling interpreter's."""
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    information = packages / f"{project['name']}-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    points.optionxform = str  # type: ignore[assignment, method-assign]
    points.read_dict({"console_scripts": project["scripts"], **project.get("entry-points", {})})
    with (information / "entry_points.txt").open("w") as file:
        points.write(file)


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        raise CheckoutError(f"{' '.join(command)[:200]} failed in {folder}:\n{done.stderr[-2000:]}")
    return done.stdout


@contextlib.contextmanager
def compared(commit: str, root: Path) -> Iterator[dict[str, Checkout]]:
    """Both sides, and a folder that is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="aliquot-against-") as folder:
        scratch = Path(folder)
        with of_commit(commit, root, scratch) as base:
            yield {"base": base, "head": here(root, scratch)}
