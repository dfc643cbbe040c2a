"""Others who read the same simulated cards agree with the agent to the byte, or the difference is theirs, and named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.agent.devices.ascend import AscendBackend
from aliquot.agent.devices.gaudi import GaudiBackend
from aliquot.agent.devices.tpu import TpuBackend
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
    backend = GaudiBackend(sys_root=tmp_path / "sys", proc_root=tmp_path / "proc")
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
    backend = TpuBackend(tmp_path / "sys", tmp_path / "proc")
    backend.open()
    found = backend.discover().devices
    told = oracles.ask("by_tpu_info", {"TPU_TREE": str(tmp_path)})
    assert (told["name"], told["count"]) == ("TPU v6e chip", len(found))
    assert {info.model for info in found} == {"TPU-V6E"}
    assert {info.memory_total_bytes for info in found} == {told["memory_gib"] << 30}
    assert [f"TPU-{base}" for base, _ in told["chips"]] == [info.uuid for info in found]
