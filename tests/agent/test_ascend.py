"""Ascend cards through DCMI, on simulated chips: what is told of them, what is not, and how they are divided."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.partitioning import Part, difference
from aliquot.agent.core.samples import ActivitySource, DeviceInfo, ProcessSample, RecoveryAction
from aliquot.agent.devices import dcmi, vnpu
from aliquot.agent.devices.ascend import AscendBackend
from aliquot.agent.devices.base import BackendUnavailable, DeviceError, DeviceLost, Discovery, with_unread
from aliquot.agent.devices.kinds import make_backend
from aliquot.agent.enforce.base import Cgroups, EnforcementError, Limited
from aliquot.common.tiers import Tier
from aliquot.simgpu.errors import SimulationError
from aliquot.simgpu.vendors.dcmi import BY_BUS, BY_SWITCH, SimAscend, SimChip

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimAscend:
    made = SimAscend.create(tmp_path / "ascend", SimChip(0, name="910B3"), SimChip(1, name="910B4", busy=40))
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def backend(machine: SimAscend) -> AscendBackend:
    made = AscendBackend()
    made.open()
    made.discover()
    return made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def found(backend: AscendBackend) -> tuple[DeviceInfo, ...]:
    answer = backend.discover()
    assert not answer.problems
    return answer.devices


def test_chips_are_devices_with_their_model_memory_and_what_they_keep(backend: AscendBackend) -> None:
    first, second = found(backend)
    assert (first.model, second.model, first.vendor) == ("910B3", "910B4", "npu")
    assert (first.memory_total_bytes, second.memory_total_bytes) == (64 * GIB, 32 * GIB)
    assert first.memory_reserved_bytes == 3400 * MIB
    assert first.pci_bus_id == "0000:c1:00.0"
    assert first.uuid.startswith("NPU-a5ce0000a5ce0001")
    assert first.uuid != second.uuid


def test_identity_outlives_a_restart_and_another_numbering(machine: SimAscend, backend: AscendBackend) -> None:
    before = {info.uuid: info.model for info in found(backend)}
    machine.change(0, logic=1)
    machine.change(1, logic=0)
    again = AscendBackend()
    again.open()
    assert {info.uuid: info.model for info in again.discover().devices} == before
    shown = again.visibility([info for info in found(again) if info.model == "910B4"])
    assert shown == {"ASCEND_RT_VISIBLE_DEVICES": "0", "ASCEND_VISIBLE_DEVICES": "0"}


def test_chips_that_reach_one_another_over_hccs_are_an_island(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chips = [SimChip(card, name=name) for card, name in enumerate(["910B3"] * 6 + ["910A"])]
    machine = SimAscend.create(tmp_path / "ascend", *chips)
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    machine.link(0, 2)
    machine.link(2, 4, BY_SWITCH)
    machine.link(1, 3)
    machine.link(3, 5, BY_BUS)
    backend = AscendBackend()
    backend.open()
    assert [info.fabric_island for info in found(backend)] == [0, 1, 0, 1, 0, None, None]
    machine.cut(0, 0, "vir05_1c_16g", 100)
    islands = {info.physical_uuid: info.fabric_island for info in found(backend)}
    assert list(islands.values()) == [None, 1, 0, 1, 0, None, None], "a part has no links of its own"


def test_memory_and_processes_are_exact(
    machine: SimAscend, backend: AscendBackend, sleeper: subprocess.Popen[bytes]
) -> None:
    first = found(backend)[0]
    assert backend.memory(first.uuid).used_bytes == 0
    machine.allocate(0, 0, 1000, pid=sleeper.pid)
    machine.allocate(0, 0, 24)
    memory = backend.memory(first.uuid)
    assert (memory.total_bytes, memory.reserved_bytes, memory.used_bytes) == (64 * GIB, 3400 * MIB, 1024 * MIB)
    listed = backend.processes(first.uuid)
    assert listed.complete
    assert set(listed.processes) == {ProcessSample(sleeper.pid, 1000 * MIB), ProcessSample(os.getpid(), 24 * MIB)}
    sleeper.kill()
    sleeper.wait()
    assert backend.memory(first.uuid).used_bytes == 24 * MIB


def test_an_agent_that_starts_beside_programs_takes_none_of_their_memory_for_the_chips_own(
    machine: SimAscend, sleeper: subprocess.Popen[bytes]
) -> None:
    machine.allocate(0, 0, 5000, pid=sleeper.pid)
    late = AscendBackend()
    late.open()
    assert late.discover().devices[0].memory_reserved_bytes == 3400 * MIB


def test_load_and_health(machine: SimAscend, backend: AscendBackend) -> None:
    busy = found(backend)[1]
    load = backend.load(busy.uuid)
    assert (load.gpu_percent, load.memory_percent, load.temperature_c, load.power_mw) == (40, 20, 41, 95_300)
    assert (load.activity_percent, load.activity_source) == (40, ActivitySource.COUNTERS)
    assert backend.process_load(busy.uuid) is None, "not told"
    assert backend.health(busy.uuid).recovery_action is RecoveryAction.NONE
    machine.change(1, health=1)
    assert backend.health(busy.uuid).recovery_action is RecoveryAction.NONE, "a warning is for people"
    machine.change(1, health=3, double_bit=7)
    assert backend.health(busy.uuid).recovery_action is RecoveryAction.RESET
    assert backend.health(busy.uuid).uncorrected_errors == 7


def test_a_chip_that_is_lost_is_told_and_comes_back_as_the_same(machine: SimAscend, backend: AscendBackend) -> None:
    first, second = found(backend)
    machine.change(0, state="lost")
    with pytest.raises(DeviceLost):
        backend.memory(first.uuid)
    answer = backend.discover()
    assert [info.uuid for info in answer.devices] == [second.uuid]
    assert "NPU 0/0" in answer.problems[0]
    machine.change(0, state="starting")
    with pytest.raises(DeviceError, match="not ready"):
        backend.dcmi.memory_mb((0, 0))
    machine.change(0, state="ok")
    assert found(backend) == (first, second)


def test_a_divided_chip_is_its_virtual_npus(machine: SimAscend, backend: AscendBackend) -> None:
    whole = found(backend)[0]
    machine.cut(0, 0, "vir05_1c_16g", 100)
    machine.cut(0, 0, "vir10_3c_32g", 102)
    small, large, other = found(backend)
    assert (small.mig_profile, large.mig_profile, other.mig_profile) == ("vir05_1c_16g", "vir10_3c_32g", "")
    assert {small.parent_uuid, large.parent_uuid} == {whole.uuid}
    assert (small.memory_total_bytes, large.memory_total_bytes) == (16 * GIB, 32 * GIB)
    assert (small.compute_milli, large.compute_milli) == (250, 500)
    assert (small.mig_start, large.mig_start) == (0, 2)
    assert backend.visibility([large]) == {"ASCEND_VISIBLE_DEVICES": "102", "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}
    assert backend.memory(small.uuid).used_bytes is None, "DCMI does not tell"
    assert not backend.processes(small.uuid).complete
    assert backend.load(small.uuid).activity_percent is None
    card = backend.discover().cards[0]
    assert card.geometry == (Part(0, "vir05_1c_16g"), Part(2, "vir10_3c_32g"))
    with pytest.raises(DeviceError, match="not there"):
        backend.memory(whole.uuid + "/100/vir10_3c_32g")


def cut(backend: AscendBackend, uuid: str, *wanted: Part, reserved: tuple[int, ...] = ()) -> Discovery:
    card = next(card for card in backend.discover().cards if card.uuid == uuid)
    there = backend.geometry.read_instances(uuid, card.profiles)
    backend.geometry.apply(uuid, difference(card.profiles, there, wanted, reserved))
    return backend.discover()


def test_a_chip_is_cut_anew_under_a_running_agent_and_no_id_is_ever_another_part(
    machine: SimAscend, backend: AscendBackend
) -> None:
    machine.cut(0, 0, "vir10_3c_32g", 100)
    uuid = found(backend)[0].parent_uuid
    before = {info.uuid for info in found(backend) if info.parent_uuid == uuid}
    after = cut(backend, uuid, *(Part(start, "vir05_1c_16g") for start in range(4)))
    mine = [info for info in after.devices if info.parent_uuid == uuid]
    assert [info.mig_profile for info in mine] == ["vir05_1c_16g"] * 4
    assert not before & {info.uuid for info in mine}
    with pytest.raises(DeviceError):
        backend.memory(next(iter(before)))
    with pytest.raises(EnforcementError, match="overlaps"):
        cut(backend, uuid, Part(0, "vir10_3c_32g"), Part(1, "vir05_1c_16g"))


def test_a_virtual_npu_in_use_is_never_destroyed(machine: SimAscend, backend: AscendBackend) -> None:
    machine.cut(0, 0, "vir05_1c_16g", 100)
    machine.cut(0, 0, "vir05_1c_16g", 101)
    uuid = found(backend)[0].parent_uuid
    machine.allocate(0, 0, 100, vdev=100)
    with pytest.raises(EnforcementError, match="in use"):
        cut(backend, uuid, Part(2, "vir10_3c_32g"))
    after = cut(backend, uuid, Part(0, "vir05_1c_16g"), Part(2, "vir10_3c_32g"))
    assert [info.mig_start for info in after.devices if info.parent_uuid == uuid] == [0, 2]


def test_the_hardware_holds_a_program_to_its_virtual_npu(machine: SimAscend) -> None:
    machine.cut(0, 0, "vir05_1c_16g", 100)
    machine.allocate(0, 0, 16384, vdev=100)
    with pytest.raises(SimulationError, match="16384 MB can be had"):
        machine.allocate(0, 0, 16385, vdev=100)


def test_tier_mig_holds_a_whole_virtual_npu_and_no_part_of_one(
    machine: SimAscend, backend: AscendBackend, tmp_path: Path
) -> None:
    machine.cut(0, 0, "vir05_1c_16g", 100)
    part, whole = found(backend)
    cgroups = Cgroups(lambda: "", lambda: "", tmp_path)
    ((vendor, tier),) = backend.enforcers(cgroups)
    assert (vendor, tier.tier) == ("npu", Tier.MIG)
    held = Limited(SliceSpec("l.1.0", "l", 1, part.uuid, 250, part.leasable_bytes), part)
    assert tier.available(held) == ""
    tier.apply(held)
    assert tier.read_back(held)
    assert "ask for a whole one" in tier.available(Limited(SliceSpec("l.1.0", "l", 1, part.uuid, 100, GIB), part))
    assert "not divided" in tier.available(Limited(SliceSpec("l.1.0", "l", 1, whole.uuid, 1000, GIB), whole))
    machine.change(0, state="lost")
    assert not tier.read_back(held)


def test_virtual_npus_made_elsewhere_get_the_places_that_are_left() -> None:
    profiles = vnpu.DIVISIONS["910B3"].profiles()
    # Made by hand, numbered as they came: a large one with the number of an odd place.
    assert vnpu.places(0, [(100, "vir05_1c_16g"), (101, "vir10_3c_32g")], profiles) == {100: 0, 101: 2}
    assert vnpu.places(1, [(116, "vir10_3c_32g"), (118, "vir10_3c_32g")], profiles) == {116: 0, 118: 2}
    assert vnpu.places(0, [(100, "unheard_of")], profiles) == {}


@pytest.mark.parametrize("model", sorted(vnpu.DIVISIONS))
def test_templates_of_a_chip_never_come_to_more_than_it_has(model: str) -> None:
    division = vnpu.DIVISIONS[model]
    for profile in division.profiles():
        assert profile.starts, profile
        assert max(profile.starts) + profile.length <= division.units


def test_a_driver_that_offers_less_leaves_things_unknown(
    machine: SimAscend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "old.c"
    source.write_text("int dcmi_init(void) { return 0; }\n")
    library = tmp_path / "libdcmi.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    backend = AscendBackend(str(library))
    backend.open()
    with pytest.raises(DeviceError):
        backend.discover()
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    with pytest.raises(BackendUnavailable):
        AscendBackend(str(broken)).open()
    monkeypatch.delenv("ALIQUOT_SIMDCMI")
    with pytest.raises(BackendUnavailable, match="dcmi_init answered"):
        AscendBackend().open()


def test_one_kind_that_crashes_at_its_load_takes_nothing_from_the_others(machine: SimAscend, tmp_path: Path) -> None:
    source = tmp_path / "crash.c"
    source.write_text("__attribute__((constructor)) static void crash(void) { *(volatile int *)8 = 1; }\n")
    library = tmp_path / "crash.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with pytest.raises(BackendUnavailable, match="signal 11"):
        make_backend(f"ascend:{library},nvml").open()


def test_a_part_that_has_become_another_since_the_last_look_is_lost(machine: SimAscend, backend: AscendBackend) -> None:
    machine.cut(0, 0, "vir10_3c_32g", 100)
    before = found(backend)[0]
    backend.dcmi.destroy((0, 0), 100)
    with pytest.raises(DeviceLost):
        backend.memory(before.uuid)
    backend.dcmi.create((0, 0), 100, "vir05_1c_16g")
    with pytest.raises(DeviceLost):
        backend.memory(before.uuid)


def test_structures_have_the_sizes_of_the_public_header() -> None:
    sizes = {
        kind.__name__: ctypes.sizeof(kind) for kind in (dcmi.ChipInfo, dcmi.HbmInfo, dcmi.MemoryInfo, dcmi.PcieInfo)
    }
    assert sizes == {"ChipInfo": 100, "HbmInfo": 32, "MemoryInfo": 112, "PcieInfo": 64}


def test_a_card_or_part_that_is_refused_takes_no_other_away(
    machine: SimAscend, backend: AscendBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.cut(0, 0, "vir05_1c_16g", 100)
    machine.cut(0, 0, "vir10_3c_32g", 102)
    before = {info.uuid: info for info in found(backend)}
    small, large, other = before
    real = dcmi.Dcmi.part

    def part(self: dcmi.Dcmi, chip: dcmi.Chip, number: int) -> dcmi.VirtualNpu:
        if number == 100:
            raise DeviceError("refused")
        return real(self, chip, number)

    monkeypatch.setattr(dcmi.Dcmi, "part", part)
    answer = backend.discover()
    assert with_unread(before, answer.devices, answer.problems) == before
    assert backend.memory(large).total_bytes == 32 * GIB, "its neighbour is measured as before"
    with pytest.raises(DeviceError, match="refused"):
        backend.memory(small)

    def of_card(self: dcmi.Dcmi, card: int) -> Iterator[dcmi.Chip]:
        if card == 0:
            raise DeviceError("refused")
        yield (card, 0)

    monkeypatch.setattr(dcmi.Dcmi, "_of_card", of_card)
    answer = backend.discover()
    assert [info.uuid for info in answer.devices] == [other]
    assert answer.problems == ("NPU 0: refused",)
    assert backend.memory(large).total_bytes == 32 * GIB
