"""Cgroups as a container runtime or a batch system makes them, and processes born in them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.agent.processes.cgroups import CgroupTree, ContainmentError
from aliquot.common.kernel_files import MOUNTINFO, find_mount
from tests.agent.harness import until


def hierarchy() -> Path:
    """Where cgroup v2 is mounted; skips where tests can't use it."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make cgroups")
    mount = find_mount(MOUNTINFO.read_text())
    if mount is None:
        pytest.skip("needs cgroup v2, which is mounted nowhere")
    if mount.root != "/":
        pytest.skip(f"needs the whole cgroup v2 hierarchy, of which {mount.root} is mounted")
    return mount.directory


def why_no_tree() -> str:
    """Why an agent can have no cgroups of its own here, for a skip; empty: it can."""
    try:
        CgroupTree.open("test-probe").close()
    except ContainmentError as error:
        return f"needs a cgroup v2 hierarchy of its own: {error.explain()}"
    return ""


@contextlib.contextmanager
def subtree(name: str) -> Iterator[Path]:
    """A cgroup of this test, from which everything is removed at the end."""
    top = hierarchy() / f"{name}-{os.getpid()}"
    top.mkdir()
    try:
        yield top
    finally:
        with contextlib.suppress(OSError):
            (top / "cgroup.kill").write_text("1")
        until(lambda: _removed(top), f"{top} is removed")


def named(directory: Path) -> str:
    """A cgroup, from the root of the hierarchy."""
    return "/" + str(directory.relative_to(hierarchy()))


def run_in(cgroup: Path, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a program in a cgroup, as a runtime does: it is there before its first instruction."""
    script = f'echo $$ > "{cgroup}/cgroup.procs" && exec "$@"'
    return subprocess.Popen(
        ["sh", "-c", script, "sh", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _removed(top: Path) -> bool:
    for directory in sorted(top.glob("**/"), reverse=True):
        with contextlib.suppress(OSError):
            directory.rmdir()
    return not top.exists()
