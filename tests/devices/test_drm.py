"""Cards of amdgpu and xe by the kernel's files: what goes wrong there, and what other tools get wrong."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent.core.fdinfo import Client, parse, percent
from aliquot.agent.core.model import SliceSpec
from aliquot.agent.devices.base import BackendUnavailable, DeviceError, DeviceLost, Discovery, with_unread
from aliquot.agent.devices.drm.backend import DrmBackend
from aliquot.agent.environment import Granted, environment
from aliquot.agent.processes.tree import RealTree
from aliquot.common.tiers import Tier
from aliquot.simgpu.drm import Machine, create
from aliquot.simgpu.drm.tree import SimulatedTree

GIB = 1 << 30

# As a kernel shows them (drm-usage-stats): by amdgpu, xe and i915.
AMDGPU = """pos:\t0
flags:\t02100002
drm-driver:\tamdgpu
drm-client-id:\t52
drm-pdev:\t0000:03:00.0
pasid:\t32776
drm-total-cpu:\t0
drm-total-gtt:\t12 KiB
drm-resident-gtt:\t12 KiB
drm-total-vram:\t262144 KiB
drm-shared-vram:\t0
drm-resident-vram:\t131072 KiB
drm-memory-vram:\t262144 KiB
amd-evicted-vram:\t0 KiB
drm-engine-gfx:\t1500000 ns
drm-engine-compute:\t5000000 ns
"""
XE = """drm-driver:\txe
drm-client-id:\t7
drm-pdev:\t0000:05:00.0
drm-total-system:\t0
drm-total-vram0:\t67108864
drm-resident-vram0:\t33554432
drm-resident-vram1:\t1 MiB
drm-cycles-rcs:\t28257900
drm-total-cycles-rcs:\t7655183225
drm-engine-capacity-ccs:\t4
drm-cycles-ccs:\t400
drm-total-cycles-ccs:\t1000
drm-something-new:\t5 EiB
"""
I915 = """drm-driver:\ti915
drm-client-id:\t9
drm-pdev:\t0000:06:00.0
drm-resident-system0:\t4 KiB
drm-resident-local0:\t8 MiB
drm-engine-render:\t25662044495 ns
drm-engine-capacity-video:\t2
"""


def test_what_kernels_show_is_read_as_they_mean_it() -> None:
    amd, xe, older = parse(AMDGPU), parse(XE), parse(I915)
    assert amd is not None
    assert (amd.driver, amd.pdev, amd.client_id) == ("amdgpu", "0000:03:00.0", "52")
    assert amd.memory_bytes == 131072 << 10, "what is resident, not the older name's whole"
    assert amd.busy == {"gfx": 1_500_000, "compute": 5_000_000}
    assert xe is not None
    assert xe.memory_bytes == (32 << 20) + (1 << 20)
    assert (xe.total["ccs"], xe.engines["ccs"]) == (1000, 4)
    assert older is not None
    assert older.memory_bytes == 8 << 20
    before = parse(AMDGPU.replace("drm-resident-vram:\t131072 KiB\n", "").replace("drm-resident-gtt:\t12 KiB\n", ""))
    assert before is not None
    assert before.memory_bytes == 262144 << 10, "kernels that say only `memory`"
    mute = parse("drm-driver:\txe\ndrm-client-id:\t1\n")
    assert mute is not None
    assert mute.memory_bytes is None, "not told is not nothing"
    assert parse("pos:\t0\nflags:\t02\n") is None


def test_time_is_of_the_busiest_engine_and_a_counter_that_steps_back_is_none() -> None:
    def client(busy: int, total: int = 0) -> Client:
        return Client("xe", "", "1", 0, {"ccs": busy}, {"ccs": total} if total else {}, {"ccs": 2})

    assert percent(client(0), client(500), 1000) == 25, "half of one of two engines"
    assert percent(client(100, 1000), client(1100, 2000), 5) == 50, "by cycles where the driver counts these"
    assert percent(client(500), client(100), 1000) == 0
    assert percent(client(0), client(10**9), 1000) == 100
    assert percent(client(0), client(1), 1) == 50, "of one nanosecond"
    assert percent(client(0), client(500), 0) == 0, "no time has passed"
    assert percent(client(0, 1000), client(1000, 1000), 5) == 0, "no cycle has"


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    parse(text)
    parse(f"drm-driver: x\ndrm-client-id: 1\n{text}")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return create(tmp_path / "machine", ["MI300X", "B60"])


@pytest.fixture
def backend(machine: Machine) -> DrmBackend:
    return made(machine)


def made(machine: Machine) -> DrmBackend:
    backend = DrmBackend(SimulatedTree(machine.root))
    backend.open()
    backend.discover()
    return backend


def listed(backend: DrmBackend, uuid: str) -> dict[int, int | None]:
    """As an agent's poll asks: for the memory first."""
    backend.memory(uuid)
    return {each.pid: each.memory_bytes for each in backend.processes(uuid).processes}


def test_leases_on_amd_know_no_variable_of_nvidias_and_only_one_of_their_own(backend: DrmBackend) -> None:
    info = backend.discover().devices[0]
    spec = SliceSpec("l-1.1.0", "l-1", 1, info.uuid, 500, 10 * GIB)
    granted = [Granted(spec, info, Tier.DRIVER, {})]
    variables, notes = environment(granted, {"HIP_VISIBLE_DEVICES": "0"}, "/agent.sock", backend.visibility)
    assert variables["ROCR_VISIBLE_DEVICES"] == info.uuid
    assert not {name for name in variables if "CUDA" in name or "NVIDIA" in name or name.startswith("HIP")}
    assert any("HIP_VISIBLE_DEVICES" in note for note in notes)
    # Programs are not told the kernel's limit: their allocators' part is of the whole card.
    fraction = float(variables["XLA_CLIENT_MEM_FRACTION"])
    assert fraction < 10 * GIB / info.memory_total_bytes


def test_ten_gibibytes_are_ten_gibibytes(machine: Machine, backend: DrmBackend, job: Callable[[], int]) -> None:
    pid, uuid = job(), backend.discover().devices[0].uuid
    machine.take(pid, 0, 10 * GIB)
    assert listed(backend, uuid) == {pid: 10 * GIB}
    assert backend.memory(uuid).used_bytes == 10 * GIB


def test_a_client_on_three_descriptors_and_in_two_processes_counts_once(
    machine: Machine, backend: DrmBackend, job: Callable[[], int]
) -> None:
    first, second = sorted((job(), job()))
    uuid = backend.discover().devices[1].uuid
    client = machine.take(second, 1, 3 * GIB)
    with machine.changed() as books:
        books.held[0].descriptors = 3
    assert listed(backend, uuid) == {second: 3 * GIB}
    machine.share(client, first)
    with machine.changed() as books:
        for held in books.held:
            held.memory_bytes = 3 * GIB  # both show what the one file has
    assert listed(backend, uuid) == {first: 0, second: 3 * GIB}, "whoever had it first still counts for it"
    machine.end(second)
    assert listed(backend, uuid) == {first: 3 * GIB}, "and then who is left"


def test_two_parts_of_one_card_have_their_own_names_and_their_own_processes(
    machine: Machine, backend: DrmBackend, job: Callable[[], int]
) -> None:
    machine.cut(0, "CPX", "NPS4")
    parts = [info for info in backend.discover().devices if info.parent_uuid]
    assert len({part.uuid for part in parts}) == 8
    assert len({part.pci_bus_id for part in parts}) == 1
    first, second = job(), job()
    machine.take(first, 0, 2 * GIB, part=0)
    machine.take(second, 0, GIB, part=5)
    assert listed(backend, parts[0].uuid) == {first: 2 * GIB}
    assert listed(backend, parts[5].uuid) == {second: GIB}
    assert not any(listed(backend, part.uuid) for part in (*parts[1:5], *parts[6:]))
    assert backend.memory(parts[0].uuid).used_bytes == 2 * GIB
    assert backend.visibility([parts[5]]) == {"ROCR_VISIBLE_DEVICES": "5"}
    assert all(part.memory_shared for part in parts), "eight parts and four banks: neighbours share"


def test_parts_with_a_bank_each_share_no_memory(machine: Machine, backend: DrmBackend) -> None:
    machine.cut(0, "QPX", "NPS4")
    parts = [info for info in backend.discover().devices if info.parent_uuid]
    assert [part.memory_shared for part in parts] == [False] * 4
    assert sum(part.memory_total_bytes for part in parts) <= 196_288 << 20


def test_what_the_card_holds_for_nobody_is_spread_over_its_parts(machine: Machine, backend: DrmBackend) -> None:
    with machine.changed() as books:
        books.cards[0].overhead_bytes = 800
    machine.cut(0, "CPX", "NPS1")
    parts = [info for info in backend.discover().devices if info.parent_uuid]
    assert [backend.memory(part.uuid).used_bytes for part in parts] == [100] * 8


@pytest.mark.parametrize(("mode", "banks"), [("CPX", "NPS1"), ("SPX", "NPS4"), ("DPX", "NPS1")])
def test_a_card_that_is_cut_anew_is_lost_as_what_it_was(
    machine: Machine, backend: DrmBackend, mode: str, banks: str
) -> None:
    machine.cut(0, "CPX", "NPS4")
    before = {info.uuid for info in backend.discover().devices if info.parent_uuid}
    machine.cut(0, mode, banks)
    for uuid in before:
        for ask in (backend.memory, backend.processes, backend.load):
            with pytest.raises(DeviceLost):
                ask(uuid)
    after = {info.uuid for info in backend.discover().devices if info.vendor == "amd"}
    assert not after & before


def test_a_card_with_virtual_functions_is_not_to_be_leased_and_they_are(
    machine: Machine, backend: DrmBackend, job: Callable[[], int]
) -> None:
    whole = next(info for info in backend.discover().devices if info.vendor == "intel")
    machine.set_virtual(1, 2)
    with machine.changed() as books:  # listed before their card
        books.cards = [*reversed(books.cards)]
    with pytest.raises(DeviceLost):
        backend.memory(whole.uuid)
    found = backend.discover()
    functions = [info for info in found.devices if info.vendor == "intel"]
    assert [info.parent_uuid for info in functions] == [whole.uuid] * 2
    assert whole.uuid not in {info.uuid for info in found.devices}
    assert any("virtual functions" in text for text in found.unleasable)
    pid = job()
    place = next(place for place, card in enumerate(machine.books().cards) if card.address.endswith(".2"))
    machine.take(pid, place, GIB)
    assert [listed(backend, info.uuid) for info in functions] == [{}, {pid: GIB}]
    assert [backend.memory(info.uuid).used_bytes for info in functions] == [0, GIB]


def test_cards_that_cant_be_leased_are_told_with_the_reason(tmp_path: Path) -> None:
    machine = create(tmp_path / "machine", ["A770", "APU", "B580", "MI210"])
    with machine.changed() as books:
        books.controller = False
    found = made(machine).discover()
    assert [info.model for info in found.devices] == ["MI210"]
    told = " ".join(found.unleasable)
    for word in ("i915", "machine's own memory", "CONFIG_CGROUP_DMEM"):
        assert word in told


def test_cards_that_cant_be_leased_are_measured(tmp_path: Path, job: Callable[[], int]) -> None:
    """Those of i915 by their clients' files and sensors alone: how much is in use of the card itself, nobody tells."""
    machine, now = create(tmp_path / "machine", ["A770", "IRIS", "APU", "B580"]), [0]
    with machine.changed() as books:
        books.controller = False
    backend = DrmBackend(SimulatedTree(machine.root), lambda: now[0])
    found = backend.discover()
    assert [info.pci_bus_id for info in found.measured] == [machine.address(place) for place in range(4)]
    arc, graphics, _, xe = (info.uuid for info in found.measured)
    busy, mixed = job(), job()
    machine.take(busy, 0, 3 * GIB)
    machine.take(mixed, 3, GIB)
    client = machine.take(mixed, 1, 0)
    with machine.changed() as books:
        next(held for held in books.held if held.client_id == client).spilled_bytes = GIB
    assert backend.memory(arc).used_bytes is None
    assert listed(backend, arc) == {busy: 3 * GIB}
    assert listed(backend, xe) == {mixed: GIB}
    assert listed(backend, graphics) == {mixed: 0}, "it holds the machine's memory, and none of the card's"
    assert backend.process_load(arc) is None
    with machine.changed() as books:
        books.held[0].engine_ns = 250_000_000
    now[0] = 1_000_000_000
    assert backend.process_load(arc) == {busy: 25}
    assert (backend.load(arc).activity_percent, backend.load(arc).temperature_c) == (25, 40)
    machine.unplug(0)
    with pytest.raises(DeviceLost):
        backend.memory(arc)


class Failing(SimulatedTree):
    """Reading fails where it is told to."""

    fail: Callable[[str], OSError | None] = staticmethod(lambda path: None)

    def read(self, path: str) -> str:
        if (error := self.fail(path)) is not None:
            raise error
        return super().read(path)

    def names(self, path: str) -> list[str]:
        if (error := self.fail(path)) is not None:
            raise error
        return super().names(path)


def test_a_file_that_vanishes_while_it_is_read_is_nobody(machine: Machine, job: Callable[[], int]) -> None:
    tree = Failing(machine.root)
    backend = DrmBackend(tree)
    uuid = backend.discover().devices[1].uuid
    gone, there = job(), job()
    machine.take(gone, 1, GIB)
    machine.take(there, 1, 2 * GIB)
    tree.fail = lambda path: FileNotFoundError(2, "gone", path) if path.startswith(f"/proc/{gone}/fdinfo") else None
    assert listed(backend, uuid) == {there: 2 * GIB}
    tree.fail = lambda path: ProcessLookupError(3, "gone", path) if path.startswith(f"/proc/{gone}/fd") else None
    assert listed(backend, uuid) == {there: 2 * GIB}


def test_where_somebody_cant_be_looked_into_nothing_is_known_of_processes(
    machine: Machine, job: Callable[[], int]
) -> None:
    tree, now = Failing(machine.root), [0]
    backend = DrmBackend(tree, lambda: now[0])
    uuid = backend.discover().devices[1].uuid
    machine.take(job(), 1, GIB)
    for where in ("fd", "fdinfo/3"):
        tree.fail = lambda path, where=where: PermissionError(13, "no", path) if path.endswith(where) else None  # type: ignore[misc]
        now[0] += 5_000_000_000
        with pytest.raises(DeviceError, match="CAP_SYS_PTRACE"):
            backend.processes(uuid)
        assert backend.memory(uuid).used_bytes == GIB, "the card itself can still be measured"
    tree.fail = lambda path: None
    now[0] += 5_000_000_000
    assert list(listed(backend, uuid).values()) == [GIB]


def test_the_compute_drivers_books_count_where_they_say_more(
    machine: Machine, backend: DrmBackend, job: Callable[[], int]
) -> None:
    uuid = backend.discover().devices[0].uuid
    pid = job()
    machine.take(pid, 0, GIB)
    books = next((machine.root / f"sys/class/kfd/kfd/proc/{pid}").iterdir())
    books.write_text(f"{3 * GIB}\n")
    assert listed(backend, uuid) == {pid: 3 * GIB}


class Peopled(SimulatedTree):
    """Processes without a card are there as well."""

    pids: tuple[int, ...] = ()

    def names(self, path: str) -> list[str]:
        if path == "/proc":
            return list({*super().names(path), *map(str, self.pids)})
        try:
            return super().names(path)
        except FileNotFoundError:
            if path in {f"/proc/{pid}/fd" for pid in self.pids}:
                return []
            raise


def test_who_opens_a_card_late_is_seen_at_once_with_much_memory_and_soon_with_little(
    machine: Machine, job: Callable[[], int]
) -> None:
    now, tree = [0], Peopled(machine.root)
    backend = DrmBackend(tree, lambda: now[0])
    uuid = backend.discover().devices[1].uuid
    late, small, first = tree.pids = (job(), job(), job())
    machine.take(first, 1, GIB)
    assert listed(backend, uuid) == {first: GIB}
    machine.take(late, 1, 2 * GIB)
    assert listed(backend, uuid) == {first: GIB, late: 2 * GIB}
    machine.take(small, 1, 1 << 20)
    assert listed(backend, uuid) == {first: GIB, late: 2 * GIB}
    now[0] += 5_000_000_000
    assert listed(backend, uuid) == {first: GIB, late: 2 * GIB, small: 1 << 20}


def test_engines_time_is_a_processs_own(machine: Machine, job: Callable[[], int]) -> None:
    now = [0]
    backend = DrmBackend(SimulatedTree(machine.root), lambda: now[0])
    uuid = backend.discover().devices[0].uuid
    busy, idle = job(), job()
    machine.take(busy, 0, GIB)
    machine.take(idle, 0, GIB)
    assert backend.process_load(uuid) is None, "one look tells no rate"
    with machine.changed() as books:
        books.held[0].engine_ns = 600_000_000
    now[0] = 1_000_000_000
    assert backend.process_load(uuid) == {busy: 60, idle: 0}
    assert backend.process_peaks(uuid) == {busy: 60, idle: 0}


def test_what_a_card_says_of_its_health_is_told(machine: Machine, backend: DrmBackend) -> None:
    uuid = backend.discover().devices[0].uuid
    assert backend.health(uuid).uncorrected_errors == 0
    assert backend.health(uuid).remap_pending is None
    with machine.changed() as books:
        books.cards[0].uncorrected, books.cards[0].bad_pages = 2, "RP"
    sample = backend.health(uuid)
    assert (sample.uncorrected_errors, sample.remap_pending, sample.remap_failed) == (2, True, False)
    assert sample.memory_temperature_c == 48
    assert backend.health(backend.discover().devices[1].uuid).uncorrected_errors is None


def test_a_card_that_hangs_keeps_nobody_who_asks_of_another(machine: Machine, job: Callable[[], int]) -> None:
    tree = Failing(machine.root)
    backend = DrmBackend(tree)
    hanging, other = (info.uuid for info in backend.discover().devices)
    stuck, well = job(), job()
    machine.take(stuck, 0, GIB)
    machine.take(well, 1, GIB)
    release, asked = threading.Event(), threading.Event()

    def hang(path: str) -> OSError | None:
        if path.startswith(f"/proc/{stuck}/fdinfo"):
            asked.set()
            assert release.wait(60)
        return None

    tree.fail = hang
    thread = threading.Thread(target=backend.processes, args=(hanging,))
    thread.start()
    assert asked.wait(60)
    assert listed(backend, other) == {well: GIB}
    release.set()
    thread.join()


def test_a_driver_that_was_loaded_again_has_lost_its_cards_until_they_are_looked_for(
    machine: Machine, backend: DrmBackend, job: Callable[[], int]
) -> None:
    info = backend.discover().devices[1]
    machine.unload(1)
    with pytest.raises(DeviceLost):
        backend.memory(info.uuid)
    machine.load(1)
    with pytest.raises(DeviceLost):
        backend.processes(info.uuid)
    assert info in backend.discover().devices
    pid = job()
    machine.take(pid, 1, GIB)
    assert listed(backend, info.uuid) == {pid: GIB}


def test_without_the_compute_driver_no_program_can_use_an_amd_card(machine: Machine) -> None:
    tree = Failing(machine.root)
    tree.fail = lambda path: FileNotFoundError(2, "no", path) if "/kfd/" in path else None
    backend = DrmBackend(tree)
    amd, intel = backend.discover().devices
    assert "KFD" in backend.unusable(amd)
    assert not backend.unusable(intel)


def test_a_machine_without_cards_has_no_such_backend(tmp_path: Path) -> None:
    (tmp_path / "sys/class/drm").mkdir(parents=True)
    for root in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(BackendUnavailable):
            DrmBackend(RealTree(str(root))).open()


def test_a_recorded_machine_is_read_like_a_real_one(machine: Machine) -> None:
    recorded = DrmBackend(RealTree(str(machine.root)))
    recorded.open()
    found = recorded.discover().devices
    assert [info.model for info in found] == ["MI300X"], "xe tells its memory by cgroups, which a record has not"
    pid = os.getpid()
    machine.take(pid, 0, GIB)
    assert listed(recorded, found[0].uuid) == {pid: GIB}
    assert not recorded.probe(found[0])


class RefusingTree(SimulatedTree):
    """Files whose path has `refused` in it can't be read, as while a driver resets a card."""

    refused = ""

    def read(self, path: str) -> str:
        self._ask(path)
        return super().read(path)

    def names(self, path: str) -> list[str]:
        self._ask(path)
        return super().names(path)

    def link(self, path: str) -> str:
        self._ask(path)
        return super().link(path)

    def _ask(self, path: str) -> None:
        if self.refused and self.refused in path:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)


@pytest.mark.parametrize(
    "refused",
    ["current_compute_partition", "kfd/topology/nodes", "nodes/3/properties", "dmem.capacity", "/driver", "unique_id"],
)
def test_what_cant_be_read_later_is_what_it_was(machine: Machine, refused: str) -> None:
    machine.cut(0, "CPX", "NPS4")
    tree = RefusingTree(machine.root)
    backend = DrmBackend(tree)
    backend.open()
    before = {info.uuid: info for info in backend.discover().devices}
    tree.refused = refused
    try:
        found = backend.discover()
    except DeviceError:
        found = Discovery((), ("it can't be listed",))
    assert with_unread(before, found.devices, found.problems) == before, "not gone, no whole card, no other part"
    assert found.problems
    tree.refused = refused if refused.startswith("current") else ""
    for uuid in before:
        try:
            backend.memory(uuid)
        except DeviceError as error:
            assert not isinstance(error, DeviceLost), "that nothing is said of how it is cut does not take it away"
    tree.refused = ""
    assert {info.uuid: info for info in backend.discover().devices} == before
    for uuid in before:
        assert backend.memory(uuid).total_bytes
