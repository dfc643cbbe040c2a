"""Gaudi and TPU: leased whole, with what their drivers tell, and nothing that they don't."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.agent.core.samples import ProcessSample
from aliquot.agent.devices.base import BackendUnavailable, DeviceError, DeviceLost
from aliquot.agent.devices.gaudi import GaudiBackend
from aliquot.agent.devices.owners import Owners
from aliquot.agent.devices.tpu import TpuBackend, chips
from aliquot.simgpu.vendors.hlml import SimGaudi, SimGaudis

MIB, GIB = 1 << 20, 1 << 30
CARD = SimGaudi(0, busy=70)
OPENED = "import os, sys; held = os.open(sys.argv[1], os.O_RDONLY); print(flush=True); sys.stdin.read()"


def opened_by(proc_root: Path, pid: int, path: str) -> None:
    """A process as /proc shows it, with a file open."""
    folder = proc_root / str(pid) / "fd"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "7").symlink_to(path)


@pytest.fixture
def gaudi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SimGaudis, GaudiBackend]:
    machine = SimGaudis.create(tmp_path / "gaudi", tmp_path / "sys", CARD, SimGaudi(1, name="HL-325L"))
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "proc").mkdir()
    backend = GaudiBackend(sys_root=tmp_path / "sys", owners=Owners(tmp_path / "proc", fresh_s=0))
    backend.open()
    return machine, backend


def test_gaudi_cards_are_told_with_memory_load_and_health(
    gaudi: tuple[SimGaudis, GaudiBackend], tmp_path: Path
) -> None:
    machine, backend = gaudi
    first, second = backend.discover().devices
    assert (first.model, second.model, first.vendor) == ("GAUDI2", "GAUDI3", "gaudi")
    assert (first.memory_total_bytes, first.memory_reserved_bytes) == (96 * GIB, 672 * MIB)
    assert (first.uuid, first.pci_bus_id) == (f"HL-{CARD.uuid}", "0000:33:00.0")
    assert backend.memory(first.uuid).used_bytes == 0
    load = backend.load(first.uuid)
    assert (load.gpu_percent, load.temperature_c, load.power_mw) == (70, 36, 98_000)
    assert (backend.health(first.uuid).uncorrected_errors, backend.health(first.uuid).memory_temperature_c) == (0, 41)
    machine.change(CARD, uncorrected=3)
    assert backend.health(first.uuid).uncorrected_errors == 3
    assert backend.visibility([second])["HABANA_VISIBLE_DEVICES"] == "1"
    machine.allocate(0, os.getpid(), 10 * GIB)
    opened_by(tmp_path / "proc", os.getpid(), "/dev/accel/accel0")
    assert backend.memory(first.uuid).used_bytes == 10 * GIB
    assert backend.processes(first.uuid).processes == (ProcessSample(os.getpid(), 10 * GIB),)
    assert backend.processes(second.uuid).processes == ()


def test_a_gaudi_card_that_is_lost_comes_back_as_the_same(gaudi: tuple[SimGaudis, GaudiBackend]) -> None:
    machine, backend = gaudi
    before = backend.discover().devices
    machine.change(CARD, state="lost")
    with pytest.raises(DeviceLost):
        backend.memory(before[0].uuid)
    assert "Gaudi 0" in backend.discover().problems[0]
    machine.change(CARD, state="ok")
    assert backend.discover().devices == before


def test_without_gaudis_library_there_is_no_backend(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="cannot open"):
        GaudiBackend(str(tmp_path / "libhlml.so")).open()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two TPU v5e, and a network card of Google's."""
    for number, (device, group) in enumerate((("0x0063", 3), ("0x0063", 4), ("0x0042", 9))):
        folder = tmp_path / f"sys/bus/pci/devices/0000:00:0{4 + number}.0"
        folder.mkdir(parents=True)
        for name, word in (("vendor", "0x1ae0"), ("device", device), ("subsystem_device", "0x00af")):
            (folder / name).write_text(f"{word}\n")
        target = tmp_path / f"sys/kernel/iommu_groups/{group}"
        target.mkdir(parents=True)
        (folder / "iommu_group").symlink_to(target)
    (tmp_path / "proc").mkdir()
    return tmp_path


def test_tpus_are_told_from_files_and_their_memory_in_use_is_unknown(tree: Path) -> None:
    backend = TpuBackend(tree / "sys", Owners(tree / "proc", fresh_s=0))
    backend.open()
    first, second = backend.discover().devices
    assert (first.model, first.vendor, first.memory_total_bytes) == ("TPU-V5E", "tpu", 16 * GIB)
    assert (first.uuid, second.uuid) == ("TPU-0000:00:04", "TPU-0000:00:05")
    assert backend.memory(first.uuid).used_bytes == 0
    opened_by(tree / "proc", 4711, "/dev/vfio/3")
    assert backend.memory(first.uuid).used_bytes is None, "somebody is on it, and nobody tells with how much"
    assert backend.processes(first.uuid).processes == (ProcessSample(4711, None),)
    assert backend.memory(second.uuid).used_bytes == 0
    assert backend.visibility([second]) == {"TPU_VISIBLE_CHIPS": "1", "TPU_VISIBLE_DEVICES": "1"}
    assert backend.load(first.uuid).gpu_percent is None
    assert backend.health(first.uuid).recovery_action is None


def test_a_tpu_that_leaves_the_bus_is_lost(tree: Path) -> None:
    backend = TpuBackend(tree / "sys", Owners(tree / "proc", fresh_s=0))
    backend.open()
    first, second = backend.discover().devices
    (tree / "sys/bus/pci/devices/0000:00:04.0/vendor").rename(tree / "away")
    with pytest.raises(DeviceLost):
        backend.memory(first.uuid)
    assert [info.uuid for info in backend.discover().devices] == [second.uuid], "the other keeps its name"
    with pytest.raises(DeviceError, match="not there"):
        backend.memory(first.uuid)


def test_a_machine_without_tpus_has_no_backend(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="no TPU"):
        TpuBackend(tmp_path).open()


@pytest.fixture
def holder() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    path = "/dev/zero"
    command = [sys.executable, "-c", OPENED, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process, path
        process.kill()


def test_a_real_process_with_a_file_open_is_found(holder: tuple[subprocess.Popen[bytes], str]) -> None:
    process, path = holder
    assert ProcessSample(process.pid, None) in Owners().on({path}).processes


def test_one_look_at_all_processes_serves_all_devices_for_a_moment(tmp_path: Path) -> None:
    now_s = [0.0]
    owners = Owners(tmp_path, fresh_s=0.5, clock_s=lambda: now_s[0])
    opened_by(tmp_path, 1, "/dev/accel/accel0")
    opened_by(tmp_path, 2, "/dev/vfio/3")
    assert [each.pid for each in owners.on({"/dev/accel/accel0"}).processes] == [1]
    assert [each.pid for each in owners.on({"/dev/vfio/3", "/dev/vfio/4"}).processes] == [2]
    assert owners.looks == 1
    opened_by(tmp_path, 3, "/dev/vfio/4")
    now_s[0] = 0.5
    assert [each.pid for each in owners.on({"/dev/vfio/4"}).processes] == [3]
    assert owners.looks == 2


def test_other_things_of_googles_on_the_bus_are_no_tpus(tmp_path: Path) -> None:
    """A disk of a virtual machine has the same PCI vendor."""
    folder = tmp_path / "bus/pci/devices/0000:00:03.0"
    folder.mkdir(parents=True)
    for name, word in (("vendor", "0x1ae0"), ("device", "0x001f"), ("subsystem_device", "0x004e")):
        (folder / name).write_text(word)
    assert chips(tmp_path) == []
