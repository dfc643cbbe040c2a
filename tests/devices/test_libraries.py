"""What vendors' libraries tell beside the kernel's files, from a process of their own: errors and links."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.agent.core import health
from aliquot.agent.core.signals import LINKS, UNCONTAINED
from aliquot.agent.devices.drm.backend import DrmBackend
from aliquot.agent.devices.drm.libraries import ASKED_S, LEFT_ALONE_S, Libraries
from aliquot.simgpu.drm.machine import Machine, create
from aliquot.simgpu.drm.tree import SimulatedTree
from aliquot.simgpu.vendors.scene import library
from tests.agent.harness import until


class Unlinked(SimulatedTree):
    """Its compute driver tells no links."""

    def names(self, path: str) -> list[str]:
        return [] if path.endswith("/io_links") else super().names(path)


class Side:
    """A backend with its libraries, and a clock that the test moves."""

    def __init__(self, machine: Machine, first_s: float = 30.0, **environment: str) -> None:
        tree = Unlinked(machine.root)
        self.now_s = 0.0
        self.libraries = Libraries(
            {**tree.libraries, **environment}, clock_s=lambda: self.now_s, hung_s=10.0, first_s=first_s
        )
        self.backend = DrmBackend(tree, libraries=self.libraries)
        self.backend.open()
        self.found = self.backend.discover().devices

    def errors(self, place: int) -> int | None:
        return self.backend.health(self.found[place].uuid).uncorrected_errors


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Callable[..., Side]]:
    made: list[Side] = []

    def start(machine: Machine, first_s: float = 30.0, **environment: str) -> Side:
        made.append(Side(machine, first_s, **environment))
        return made[-1]

    yield start
    for side in made:
        side.backend.close()


@pytest.mark.parametrize(("model", "other"), [("MI300X", "B60"), ("B60", "MI300X")])
def test_cards_with_links_are_islands_and_a_link_that_fails_is_a_sign(
    model: str, other: str, tmp_path: Path, beside: Callable[..., Side]
) -> None:
    machine = create(tmp_path / "machine", [model, model, other, model, model])
    machine.link(0, 1)
    machine.link(3, 4)
    side = beside(machine)
    island = [info.fabric_island for info in side.found]
    assert island[2] is None
    assert island[0] is not None
    assert island[0] == island[1] != island[3] == island[4] is not None
    uuid = side.found[0].uuid
    sample = side.backend.health(uuid)
    assert sample.links_up == 1
    assert side.backend.health(side.found[2].uuid).links_up is None, "no links, and none that are down"
    standing = health.on_sample(health.Health(), sample, 0)
    assert standing.healthy
    with machine.changed() as books:
        books.cards[0].links_down = 1
    side.now_s += ASKED_S
    before = side.libraries.pids
    until(lambda: side.backend.health(uuid).links_up == 0, "the library tells the link that is down")
    assert side.libraries.pids == before, "the same program answers again"
    standing = health.on_sample(standing, side.backend.health(uuid), 1000)
    assert (standing.healthy, standing.signal) == (False, LINKS)


def test_errors_that_only_the_library_tells_take_a_card_out(tmp_path: Path, beside: Callable[..., Side]) -> None:
    machine = create(tmp_path / "machine", ["B60", "B580", "MI210"])
    side = beside(machine)
    assert [side.errors(place) for place in range(3)] == [0, 0, 0], "corrected errors and programs' own are no sign"
    with machine.changed() as books:
        books.cards[1].uncorrected = 2
    side.now_s += ASKED_S
    until(lambda: side.errors(1) == 2, "the library tells the errors")
    assert side.errors(0) == 0
    sample = side.backend.health(side.found[1].uuid)
    assert health.on_sample(health.Health(), sample, 0).signal is UNCONTAINED


def test_links_that_the_kernel_tells_need_no_library(tmp_path: Path) -> None:
    machine = create(tmp_path / "machine", ["MI300X", "MI300X", "MI210"])
    machine.link(0, 1)
    backend = DrmBackend(SimulatedTree(machine.root))
    backend.open()
    islands = [info.fabric_island for info in backend.discover().devices]
    assert islands == [0, 0, None]
    assert backend.health(backend.discover().devices[0].uuid).links_up is None


def there(pids: frozenset[int]) -> list[int]:
    """Those of these processes that have not ended, or were not waited for."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def broken(kind: str, folder: Path) -> str:
    """A library that is none, one of another vendor's, and one whose loading never ends."""
    path = folder / "libbroken.so"
    if kind == "hangs":
        os.mkfifo(path)
    elif kind == "lacks its functions":
        path.symlink_to(library("libdcmi.so"))
    else:
        path.write_text("no library")
    return str(path)


@pytest.mark.parametrize("kind", ["is none", "lacks its functions", "hangs"])
def test_a_broken_library_takes_nothing_from_the_cards(kind: str, tmp_path: Path, beside: Callable[..., Side]) -> None:
    machine = create(tmp_path / "machine", ["MI210", "B60"])
    with machine.changed() as books:
        books.cards[0].uncorrected = books.cards[1].uncorrected = 3
    first_s = 0.2 if kind == "hangs" else 30.0
    side = beside(machine, first_s, ALIQUOT_AMD_SMI_LIBRARY=broken(kind, tmp_path))
    assert [info.vendor for info in side.found] == ["amd", "intel"]
    assert side.errors(0) == 3, "by AMD's own files"
    until(lambda: side.errors(1) == 3, "Intel's library answers")
    stuck = side.libraries.pids
    side.now_s += 15.0  # more than it is given, and less than until the other one is asked again
    assert side.errors(0) == 3
    told = side.backend.discover()
    assert any("amd" in text for text in told.untold)
    assert len(told.devices) == 2
    if kind == "hangs":
        until(lambda: bool(side.errors(0)) and len(there(stuck)) == 1, "the program that hung has ended")
    before = side.libraries.pids
    side.errors(0)
    assert side.libraries.pids == before, "it is left alone for a while"
    side.now_s += LEFT_ALONE_S
    (tmp_path / "libbroken.so").unlink()
    (tmp_path / "libbroken.so").symlink_to(library("libamd_smi.so"))
    until(lambda: not side.backend.discover().untold, "the library that was repaired answers")


def test_a_library_that_ends_its_process_is_told_with_the_signal(tmp_path: Path, beside: Callable[..., Side]) -> None:
    side = beside(create(tmp_path / "machine", ["B60"]))
    (pid,) = side.libraries.pids
    os.kill(pid, 11)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "it has ended")
    side.now_s += ASKED_S
    assert side.errors(0) is None, "what it said is out of date"
    assert "signal 11" in " ".join(side.backend.discover().untold)


def test_no_library_is_no_problem_but_one_that_is_named_is(tmp_path: Path, beside: Callable[..., Side]) -> None:
    machine = create(tmp_path / "machine", ["MI210"])
    nowhere = {"ROCM_PATH": str(tmp_path), "ROCM_HOME": "", "ALIQUOT_AMD_SMI_LIBRARY": ""}
    side = beside(machine, **nowhere)
    assert not side.backend.discover().untold
    assert not side.libraries.pids
    assert not beside(machine, ALIQUOT_AMD_SMI_LIBRARY="off").backend.discover().untold
    assert beside(machine, ALIQUOT_AMD_SMI_LIBRARY="/nowhere/lib.so").backend.discover().untold


def test_its_program_is_no_tenant_and_its_library_is_not_loaded_here(
    tmp_path: Path, beside: Callable[..., Side]
) -> None:
    machine = create(tmp_path / "machine", ["B60", "MI210"])
    side = beside(machine)
    assert len(side.libraries.pids) == 2
    for pid in side.libraries.pids:
        machine.take(pid, 0, 1 << 20)
    assert not side.backend.processes(side.found[0].uuid).processes
    assert side.backend.memory(side.found[0].uuid).used_bytes == 2 << 20
    maps = Path("/proc/self/maps").read_text()
    assert "libamd_smi" not in maps
    assert "libze_loader" not in maps
    pids = side.libraries.pids
    side.backend.close()
    until(lambda: not there(pids), "its programs have ended")
