"""Memory limits of cgroups, as recent drivers enforce them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simgpu.conftest import GIB, MIB, Machine

pytestmark = pytest.mark.root("to set the memory limit of a cgroup")

NO_LIMIT = 2**64 - 1
NOT_SUPPORTED, INVALID_ARGUMENT, NOT_FOUND, OPERATING_SYSTEM = 3, 2, 6, 17
CONTEXT = 418 * MIB
OUT_OF_MEMORY = 2


def cgroup_root() -> Path | None:
    """Where cgroup v2 is mounted, alone or beside v1."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return Path(before.split()[4])
    return None


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """An empty cgroup of our own."""
    root = cgroup_root()
    if root is None:
        pytest.skip("needs cgroup v2")
    path = root / f"aliquot-simgpu-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"can't make a cgroup: {error.strerror}")
    yield path
    if path.exists():
        for pid in (path / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(pid)
        path.rmdir()


def set_limit(machine: Machine, path: Path, hard: int, soft: int = 0, index: int = 0) -> str:
    return (
        f"n.nvmlDeviceSetMemoryLimits_v1(h[{index}], "
        f"n.c_nvmlSetMemoryLimits_v1_t({str(path).encode()!r}, {soft}, {hard}))"
    )


def limits(machine: Machine, path: Path) -> list[int]:
    machine.nvml.exec(f"limits = n.c_nvmlGetMemoryLimits_v1_t({str(path).encode()!r})")
    machine.nvml.exec("n.nvmlDeviceGetMemoryLimits_v1(h[0], limits)")
    found: list[int] = machine.nvml.eval("[limits.softLimit, limits.hardLimit, limits.currentUsed]")
    return found


def test_a_limit_holds_for_all_processes_of_the_cgroup_together(machine: Machine, cgroup: Path) -> None:
    machine.nvml.exec(set_limit(machine, cgroup, 4 * GIB))
    inside, beside, outside = machine.child(), machine.child(), machine.child()
    for job in (inside, beside):
        (cgroup / "cgroup.procs").write_text(str(job.pid))
    for job in (inside, beside, outside):
        assert job.eval("cu.context()") == 0
    assert inside.eval("cu.malloc(2 << 30)[0]") == 0
    assert beside.eval("cu.malloc(2 << 30)[0]") == OUT_OF_MEMORY
    assert beside.eval("cu.malloc_async(2 << 30)[0]") == OUT_OF_MEMORY
    assert beside.eval("cu.create(2 << 30)[0]") == OUT_OF_MEMORY
    assert outside.eval("cu.malloc(20 << 30)[0]") == 0
    assert limits(machine, cgroup) == [0, 4 * GIB, 2 * CONTEXT + 2 * GIB]
    _, free, total = beside.eval("cu.info()")
    assert (free, total) == (2 * GIB - 2 * CONTEXT, 4 * GIB)
    assert beside.eval(f"cu.malloc({free})[0]") == 0
    assert beside.eval("cu.malloc(1)[0]") == OUT_OF_MEMORY
    inside.kill()
    assert beside.eval("cu.malloc(2 << 30)[0]") == 0


def test_managed_memory_does_not_count(machine: Machine, cgroup: Path) -> None:
    machine.nvml.exec(set_limit(machine, cgroup, GIB))
    job = machine.child()
    (cgroup / "cgroup.procs").write_text(str(job.pid))
    job.eval("cu.context()")
    assert job.eval("cu.managed(8 << 30)[0]") == 0
    assert limits(machine, cgroup)[2] == CONTEXT


def test_children_are_within_the_limit_too(machine: Machine, cgroup: Path) -> None:
    machine.nvml.exec(set_limit(machine, cgroup, GIB))
    job = machine.child()
    (cgroup / "cgroup.procs").write_text(str(job.pid))
    job.exec(
        "import subprocess, sys; out = subprocess.run([sys.executable, '-m', 'aliquot.simgpu.burn', "
        "'--bytes', '2Gi', '--seconds', '0'], stdout=subprocess.DEVNULL).returncode"
    )
    assert job.eval("out") == 3


def test_limits_are_cleared_by_value_or_with_their_cgroup(machine: Machine, cgroup: Path) -> None:
    machine.nvml.exec(set_limit(machine, cgroup, GIB, soft=MIB))
    assert limits(machine, cgroup) == [MIB, GIB, 0]
    machine.nvml.exec(set_limit(machine, cgroup, NO_LIMIT))
    machine.nvml.exec(f"limits = n.c_nvmlGetMemoryLimits_v1_t({str(cgroup).encode()!r})")
    assert machine.error("n.nvmlDeviceGetMemoryLimits_v1(h[0], limits)") == NOT_FOUND
    machine.nvml.exec(set_limit(machine, cgroup, GIB))
    cgroup.rmdir()
    assert machine.error("n.nvmlDeviceGetMemoryLimits_v1(h[0], limits)") == OPERATING_SYSTEM
    cgroup.mkdir()
    assert machine.error("n.nvmlDeviceGetMemoryLimits_v1(h[0], limits)") == NOT_FOUND


@pytest.fixture
def parts(cgroup: Path) -> Iterator[list[Path]]:
    """Two cgroups below it."""
    found = [cgroup / "a", cgroup / "b"]
    for each in found:
        each.mkdir()
    yield found
    for each in found:
        for pid in (each / "cgroup.procs").read_text().split():
            (cgroup.parent / "cgroup.procs").write_text(pid)
        each.rmdir()


def in_parts(machine: Machine, parts: list[Path]) -> list[Any]:
    """A process with a context in each."""
    jobs = [machine.child() for _ in parts]
    for job, part in zip(jobs, parts, strict=True):
        (part / "cgroup.procs").write_text(str(job.pid))
        assert job.eval("cu.context()") == 0
    return jobs


def test_by_own_books_parts_share_a_limit_and_each_with_its_own_has_as_much_again(
    machine: Machine, cgroup: Path, parts: list[Path]
) -> None:
    machine.nvml.exec(set_limit(machine, cgroup, 4 * GIB))
    one, other = in_parts(machine, parts)
    assert one.eval("cu.info()")[2] == 4 * GIB, "it is shown the limit of the one above"
    assert one.eval("cu.malloc(3 << 30)[0]") == 0
    assert other.eval("cu.malloc(1 << 30)[0]") == OUT_OF_MEMORY
    for each in parts:
        machine.nvml.exec(set_limit(machine, each, 4 * GIB))
    assert other.eval("cu.malloc(3 << 30)[0]") == 0, "twice the limit, by two that have it"
    assert limits(machine, cgroup)[2] == 0


def test_nested_limits_bound_what_is_below_and_a_part_without_one_shows_the_device(
    machine: Machine, cgroup: Path, parts: list[Path]
) -> None:
    machine.scenario.set_limits_nested(nested=True)
    machine.nvml.exec(set_limit(machine, cgroup, 4 * GIB))
    one, other = in_parts(machine, parts)
    assert limits(machine, parts[0])[1] == NO_LIMIT
    assert one.eval("cu.info()")[2] > 4 * GIB
    machine.nvml.exec(set_limit(machine, parts[0], 4 * GIB))
    assert one.eval("cu.info()")[2] == 4 * GIB
    assert one.eval("cu.malloc(3 << 30)[0]") == 0
    assert other.eval("cu.malloc(1 << 30)[0]") == OUT_OF_MEMORY
    assert limits(machine, cgroup)[2] == 2 * CONTEXT + 3 * GIB


def test_wrong_limits_are_refused(machine: Machine, cgroup: Path, tmp_path: Path) -> None:
    machine.nvml.eval("n.nvmlDeviceGetCount()")
    assert machine.error(set_limit(machine, cgroup, GIB, soft=2 * GIB)) == INVALID_ARGUMENT
    assert machine.error(set_limit(machine, cgroup, 1 << 50)) == INVALID_ARGUMENT
    assert machine.error(set_limit(machine, tmp_path, GIB)) == OPERATING_SYSTEM
    assert machine.error(set_limit(machine, tmp_path / "nothing", GIB)) == OPERATING_SYSTEM


def test_limits_need_a_recent_driver_and_no_mig(make_machine: Callable[..., Machine], cgroup: Path) -> None:
    old, cut = make_machine(driver_version="580.95.05"), make_machine()
    assert old.error(set_limit(old, cgroup, GIB)) == NOT_SUPPORTED
    cut.scenario.set_mig_mode(0, enabled=True)
    assert cut.error(set_limit(cut, cgroup, GIB)) == NOT_SUPPORTED
    cut.nvml.exec(set_limit(cut, cgroup, GIB, index=1))


def test_limits_are_of_one_device(machine: Machine, cgroup: Path) -> None:
    machine.nvml.exec(set_limit(machine, cgroup, GIB, index=1))
    job = machine.child()
    (cgroup / "cgroup.procs").write_text(str(job.pid))
    job.eval("cu.context(0)")
    assert job.eval("cu.malloc(4 << 30)[0]") == 0
    job.eval("cu.context(1)")
    assert job.eval("cu.malloc(4 << 30)[0]") == OUT_OF_MEMORY
