"""Others who read the same simulated cards agree with the agent to the byte, or the difference is theirs, and named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.agent.devices.ascend import AscendBackend
from aliquot.agent.devices.drm.backend import DrmBackend
from aliquot.agent.devices.drm.libraries import Libraries
from aliquot.agent.devices.gaudi import GaudiBackend
from aliquot.agent.devices.owners import Owners
from aliquot.agent.devices.tpu import TpuBackend
from aliquot.simgpu.drm.machine import Machine, create
from aliquot.simgpu.drm.tree import SimulatedTree
from aliquot.simgpu.vendors.dcmi import SimAscend, SimChip
from aliquot.simgpu.vendors.hlml import SimGaudi, SimGaudis
from aliquot.simgpu.vendors.scene import library
from tests.agent import oracles

MIB = 1 << 20


@pytest.fixture
def ascend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AscendBackend:
    machine = SimAscend.create(
        tmp_path / "ascend", SimChip(0, name="910B3", busy=37, deciwatt=1873), SimChip(1, name="910B4")
    )
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    machine.allocate(0, 0, 12_345)
    backend = AscendBackend()
    backend.open()
    return backend


def test_ntop_agrees_on_ascend_cards(ascend: AscendBackend) -> None:
    told = oracles.ask("by_ntop", {})
    found = ascend.discover().devices
    assert len(told) == len(found) == 2
    for theirs, ours in zip(told, found, strict=True):
        memory, load = ascend.memory(ours.uuid), ascend.load(ours.uuid)
        assert memory.used_bytes is not None
        assert theirs["name"] == ours.model
        assert theirs["bus"] == ours.pci_bus_id
        assert theirs["total_mb"] * MIB == memory.total_bytes
        assert theirs["used_mb"] * MIB == memory.used_bytes + memory.reserved_bytes, "ntop counts the chip's own too"
        assert (theirs["heat"], theirs["busy"]) == (load.temperature_c, load.gpu_percent)
        assert round(theirs["watt"] * 1000) == load.power_mw
        ours_mb = [[each.pid, (each.memory_bytes or 0) // MIB] for each in ascend.processes(ours.uuid).processes]
        assert theirs["processes"] == ours_mb


def test_ascendtop_agrees_that_memory_of_processes_is_in_mb(ascend: AscendBackend) -> None:
    """Page's pitfall: one tool takes DCMI's number for MB, another guesses its unit by its size."""
    told = oracles.ask("by_ascendtop", {"LD_LIBRARY_PATH": str(library("libdcmi.so").parent)})
    first, second = ascend.discover().devices
    assert told["processes"] == [[0, os.getpid(), 12_345]]
    assert ascend.processes(first.uuid).processes[0].memory_bytes == 12_345 * MIB
    assert [each["memory_total_mb"] * MIB for each in told["devices"]] == [
        first.memory_total_bytes,
        second.memory_total_bytes,
    ]
    assert [each["bus_id"] for each in told["devices"]] == [first.pci_bus_id, second.pci_bus_id]
    assert told["devices"][0]["aicore_util"] == ascend.load(first.uuid).gpu_percent


def test_pyhlml_agrees_on_gaudi_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimGaudi(0, busy=61)
    machine = SimGaudis.create(tmp_path / "gaudi", tmp_path / "sys", card, SimGaudi(1, name="HL-325L"))
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "proc").mkdir()
    backend = GaudiBackend(sys_root=tmp_path / "sys", owners=Owners(tmp_path / "proc", fresh_s=0))
    backend.open()
    found = backend.discover().devices
    machine.allocate(0, os.getpid(), 5 << 30)
    for theirs, ours in zip(oracles.ask("by_pyhlml", {}), found, strict=True):
        memory, load = backend.memory(ours.uuid), backend.load(ours.uuid)
        assert memory.used_bytes is not None
        assert (theirs["name"], f"HL-{theirs['uuid']}", theirs["bus"]) == (
            ours.product_name,
            ours.uuid,
            ours.pci_bus_id,
        )
        assert (theirs["total"], theirs["used"]) == (memory.total_bytes, memory.used_bytes + memory.reserved_bytes)
        assert (theirs["busy"], theirs["milliwatt"], theirs["heat"]) == (
            load.gpu_percent,
            load.power_mw,
            load.temperature_c,
        )


def test_tpu_info_agrees_on_tpus(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / f"sys/bus/pci/devices/0000:00:0{4 + number}.0"
        folder.mkdir(parents=True)
        for name, word in (("vendor", "0x1ae0"), ("device", "0x006f"), ("subsystem_device", "0x00b0")):
            (folder / name).write_text(f"{word}\n")
        (tmp_path / f"groups/{number}").mkdir(parents=True)
        (folder / "iommu_group").symlink_to(tmp_path / f"groups/{number}")
    (tmp_path / "proc").mkdir()
    backend = TpuBackend(tmp_path / "sys", Owners(tmp_path / "proc", fresh_s=0))
    backend.open()
    found = backend.discover().devices
    told = oracles.ask("by_tpu_info", {"TPU_TREE": str(tmp_path)})
    assert (told["name"], told["count"]) == ("TPU v6e chip", len(found))
    assert {info.model for info in found} == {"TPU-V6E"}
    assert {info.memory_total_bytes for info in found} == {told["memory_gib"] << 30}
    assert [f"TPU-{base}" for base, _ in told["chips"]] == [info.uuid for info in found]


def simulated(tmp_path: Path, *models: str) -> tuple[Machine, DrmBackend, dict[str, str]]:
    """A machine of amdgpu's and xe's cards, and where others find it."""
    machine = create(tmp_path / "machine", models)
    backend = DrmBackend(SimulatedTree(machine.root))
    backend.open()
    (tmp_path / "rocm").mkdir()
    (tmp_path / "rocm/lib").symlink_to(library("libamd_smi.so").parent)
    roots = {"SIMSYS": "sys", "SIMPROC": "proc", "SIMCGROUP": "sys/fs/cgroup"}
    environment = {f"ALIQUOT_{name}": str(machine.root / path) for name, path in roots.items()}
    return (
        machine,
        backend,
        environment
        | {
            "ROCM_PATH": str(tmp_path / "rocm"),
            "ZE_LOADER": str(library("libze_loader.so.1")),
        },
    )


def test_amdsmi_agrees_on_amds_cards_and_differs_where_it_is_known_to(tmp_path: Path) -> None:
    machine, backend, environment = simulated(tmp_path, "MI300X", "B580", "MI210")
    machine.take(os.getpid(), 0, 10 << 30)
    ours = [info for info in backend.discover().devices if info.vendor == "amd"]
    told = oracles.ask("by_amdsmi", environment)
    assert [each["bus"] for each in told] == [info.pci_bus_id for info in ours]
    assert len({each["uuid"] for each in told}) == len(ours) == 2
    for theirs, info in zip(told, ours, strict=True):
        memory = backend.memory(info.uuid)
        assert memory.used_bytes is not None
        assert (theirs["total"], theirs["used"]) == (memory.total_bytes, memory.used_bytes + memory.reserved_bytes)
        assert theirs["busy"] == backend.load(info.uuid).gpu_percent
        assert theirs["uncorrected"] == backend.health(info.uuid).uncorrected_errors
    (pid, memory_bytes) = told[0]["processes"][0]
    (listed,) = backend.processes(ours[0].uuid).processes
    assert (pid, listed.pid, listed.memory_bytes) == (os.getpid(), os.getpid(), 10 << 30)
    assert memory_bytes == (10 << 30) // 1024 * 1000, "theirs: it takes units of 1,024 for units of 1,000, 2.3 % low"
    with machine.changed() as books:
        books.held[0].descriptors = 3
    assert oracles.ask("by_amdsmi", environment)[0]["processes"][0][1] == 3 * memory_bytes, "theirs: each file counts"
    assert backend.processes(ours[0].uuid).processes[0].memory_bytes == 10 << 30, "ours: a client counts once"


def test_amdsmi_agrees_on_links_and_errors(tmp_path: Path) -> None:
    """Of Level Zero's no package on PyPI binds the functions."""
    machine, _, environment = simulated(tmp_path, "MI300X", "MI300X", "MI210", "MI300X")
    machine.link(0, 1, 3)
    with machine.changed() as books:
        books.cards[1].links_down, books.cards[3].uncorrected = 1, 4
    libraries = Libraries(SimulatedTree(machine.root).libraries, first_s=60.0)
    try:
        libraries.look({"amd"}, wait=True)
        for theirs in oracles.ask("by_amdsmi", environment):
            ours = libraries.of("amd", theirs["bus"])
            assert (ours.uncorrected, ours.links_up) == (theirs["uncorrected"], theirs["links_up"])
            assert list(ours.peers) == theirs["peers"]
    finally:
        libraries.close()


def test_pyzes_agrees_on_intels_cards_and_differs_where_it_is_known_to(tmp_path: Path) -> None:
    machine, backend, environment = simulated(tmp_path, "B580", "MI300X", "B60")
    machine.take(os.getpid(), 0, 3 << 30)
    ours = [info for info in backend.discover().devices if info.vendor == "intel"]
    told = oracles.ask("by_pyzes", environment)
    assert [each["bus"] for each in told] == [info.pci_bus_id for info in ours]
    for theirs, info in zip(told, ours, strict=True):
        memory = backend.memory(info.uuid)
        assert memory.used_bytes is not None
        assert (theirs["total"], theirs["used"]) == (memory.total_bytes, memory.used_bytes + memory.reserved_bytes)
    assert told[0]["processes"] == [[os.getpid(), 3 << 30]]
    with machine.changed() as books:
        books.held[0].descriptors = 3
    assert oracles.ask("by_pyzes", environment)[0]["processes"] == [[os.getpid(), 9 << 30]], "theirs: each file counts"
    assert backend.processes(ours[0].uuid).processes[0].memory_bytes == 3 << 30, "ours: a client counts once"


@pytest.mark.parametrize("name", ["amdsmi", "pyzes", "pyhlml"])
def test_a_vendors_reader_that_fails_at_import_takes_nothing_from_the_agent(name: str, tmp_path: Path) -> None:
    """They raise what no reader of them expects (`KeyError`, `OSError`, …). The agent imports none of them."""
    command = [sys.executable, "-c", f"import {name}; getattr({name}, 'hlmlInit', print)()"]
    absent = {**os.environ, "ROCM_PATH": str(tmp_path)}
    done = subprocess.run(command, env=absent, check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    loaded = "import aliquot.agent.main, sys; assert not {'amdsmi', 'pyzes', 'pyhlml'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True)
