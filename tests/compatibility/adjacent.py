"""The version before this one, as programs that run: taken from the repository's history, with its own generated code.

It is the last release (`git describe --tags --match 'v*'`) or, as long as there is none, the commit in the file
`previous` beside this module. Its programs run with this environment's interpreter and packages; what they import of
`aliquot` is their own. Nothing of it is installed, and nothing is fetched.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from aliquot.simgpu.libraries import LIBRARIES, library_directory

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Where a version has the libraries of the simulated GPUs: now, without a root and without a package of their own.
_PLACES = (
    Path("simgpu/aliquot/simgpu/native"),
    Path("agent/aliquot/simgpu/native"),
    Path("agent/aliquot/agent/native"),
)
ROOTS = ("proto", "common", "client", "coordinator", "agent", "simgpu")


class Unavailable(Exception):
    """There is no version before this one here; says why."""


@dataclass(frozen=True, slots=True)
class Version:
    """A tree of sources whose programs can be run."""

    name: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes an interpreter import this version's packages."""
        return {"PYTHONPATH": os.pathsep.join(str(self.folder / root) for root in ROOTS)}

    def run(self, *arguments: str, module: str = "aliquot.cli") -> subprocess.CompletedProcess[str]:
        """One of its programs, to its end."""
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env={**os.environ, **self.environment},
            timeout=120,
        )

    def check(self) -> None:
        """That what it imports is its own."""
        words = "import aliquot.coordinator, aliquot.agent, aliquot.v1 as v; print(aliquot.agent.__file__, v.__file__)"
        said = subprocess.run(
            [sys.executable, "-c", words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **self.environment},
        ).stdout
        assert all(path.startswith(str(self.folder)) for path in said.split()), said


NOW = Version("now", ROOT)


WITHOUT_MAINTENANCE = "1e3b089d73f839d88717ce73e3c0952694f6eddc"
"""A version that lacks calls and facts that came later: those about maintenance windows."""


def previous() -> str:
    """The revision before this one. Raises Unavailable."""
    described = _git("describe", "--tags", "--match", "v*", "--abbrev=0")
    return described.stdout.decode().strip() if described.returncode == 0 else (HERE / "previous").read_text().strip()


def unpacked(revision: str, above: Path) -> Version:
    """Put a version into a folder below that one, where it is not yet there. Raises Unavailable."""
    version = Version(revision, above / f"aliquot-{revision}")
    with (above / f"aliquot-{revision}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not version.folder.exists():
            unfinished = version.folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _unpack(revision, unfinished)
            unfinished.rename(version.folder)
    version.check()
    return version


def _unpack(revision: str, folder: Path) -> None:
    archive = _git("archive", "--format=tar", revision)
    if archive.returncode != 0:
        said = archive.stderr.decode(errors="replace").strip()
        raise Unavailable(
            f"needs the repository's history up to {revision} (git fetch --unshallow --tags brings it): {said}"
        )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    # The simulated GPUs stand for the machine's, which are no part of a version: both see the same. What enforces is a
    # part of it, and is not built here.
    place = next(folder / place for place in _PLACES if (folder / place).is_dir()) / "lib"
    place.mkdir()
    for name in LIBRARIES:
        (place / name).symlink_to(library_directory() / name)
    built = subprocess.run(
        [sys.executable, "hatch_build.py"], cwd=folder, capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert built.returncode == 0, built.stdout + built.stderr


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    if shutil.which("git") is None:
        raise Unavailable("needs git: apt-get install git")
    if not (ROOT / ".git").exists():  # git would take the history of a checkout around this folder
        raise Unavailable("needs the repository's history: this is no checkout")
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
