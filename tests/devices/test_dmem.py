"""Limits of the kernel's on cgroups (`dmem`): what holds, what is only believed to, and what gets around it.

All of it on the model of `aliquot.simgpu.drm`: not run on hardware.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from aliquot.agent.core.dmem import parse
from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.devices.drm.backend import DrmBackend
from aliquot.agent.enforce import proofs
from aliquot.agent.enforce.base import Cgroups, EnforcementError, Limited
from aliquot.agent.enforce.dmem import DmemEnforcer
from aliquot.agent.processes.tree import RealTree
from aliquot.common.tiers import Tier
from aliquot.simgpu.drm import Machine, create
from aliquot.simgpu.drm.machine import OutOfMemory
from aliquot.simgpu.drm.tree import SimulatedTree
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.foreign_cgroups import why_no_tree
from tests.agent.harness import Node, auntil, desired

GIB = 1 << 30
BASE = "/aliquot/n-1"
LEAF = f"{BASE}/l-1/1.0"
ENDED = (-signal.SIGTERM, -signal.SIGKILL)
KERNEL = "6.14.0-simulated"


class Stand:
    """A machine, its tier, and a lease."""

    def __init__(self, folder: Path, models: tuple[str, ...] = ("MI210", "B580")) -> None:
        self.machine: Machine = create(folder / "machine", models)
        self.tree = SimulatedTree(self.machine.root)
        self.proofs = folder / "state" / "proofs.json"
        self.now = 0.0
        self.tier = DmemEnforcer(self.tree, Cgroups(base=lambda: BASE, proofs=self.proofs), lambda: self.now)
        self.backend = DrmBackend(self.tree)
        self.tree.make(f"/sys/fs/cgroup{BASE}")

    def device(self, place: int = 0) -> DeviceInfo:
        return self.backend.discover().devices[place]

    def prove(self, kernel: str = KERNEL) -> None:
        for vendor in ("amd", "intel"):
            proofs.write(self.proofs, f"dmem/{vendor}", proofs.Proof(kernel))

    def limited(self, size: int = GIB, place: int = 0, cgroup: str = LEAF, attached: tuple[str, ...] = ()) -> Limited:
        device = self.device(place)
        spec = SliceSpec("l-1.1.0", "l-1", 1, device.uuid, 250, size)
        return Limited(spec, device, cgroup, attached)

    def why_not(self, limited: Limited) -> str:
        self.now += 60
        return self.tier.available(limited)

    def resident(self) -> int:
        return sum(held.memory_bytes for held in self.machine.books().held)

    def spilled(self) -> int:
        return sum(held.spilled_bytes for held in self.machine.books().held)


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


@pytest.mark.parametrize("place", [0, 1], ids=["amd", "intel"])
def test_a_limit_is_set_down_the_chain_and_is_what_is_read_back(stand: Stand, place: int) -> None:
    limited = stand.limited(3 * GIB, place)
    assert not stand.tier.read_back(limited)
    stand.tier.apply(limited)
    assert stand.tier.read_back(limited)
    assert not stand.tier.read_back(stand.limited(2 * GIB, place))
    for above in ("", "/aliquot", BASE, f"{BASE}/l-1"):
        assert stand.tree.read(f"/sys/fs/cgroup{above}/cgroup.subtree_control").split() == ["dmem"]
    limits = parse(stand.tree.read(f"/sys/fs/cgroup{LEAF}/dmem.max"))
    assert sorted(filter(None, limits.values())) == [3 * GIB], "of its own card alone"
    stand.tier.clear(limited)
    assert set(parse(stand.tree.read(f"/sys/fs/cgroup{LEAF}/dmem.max")).values()) == {None}


def test_it_holds_a_process_its_children_and_whatever_cgroups_it_makes(stand: Stand, job: Callable[[], int]) -> None:
    stand.tier.apply(stand.limited(GIB))
    below = f"{LEAF}/made/by/its/tenant"
    stand.tree.make(f"/sys/fs/cgroup{below}")
    first, second = job(), job()
    for pid, cgroup in ((first, LEAF), (second, below), (first, below), (second, LEAF)):
        stand.machine.take(pid, 0, 600 << 20, cgroup=cgroup)
        assert stand.resident() <= GIB
    assert stand.spilled() > 0, "what is too much is in the machine's memory, which dmem does not count"
    neighbour = job()
    stand.machine.take(neighbour, 0, 8 * GIB, cgroup=f"{BASE}/l-2/1.0")
    used_bytes = stand.backend.memory(stand.device().uuid).used_bytes
    assert used_bytes is not None
    assert 8 * GIB <= used_bytes <= 9 * GIB


def test_one_buffer_larger_than_the_limit_never_reaches_the_card(stand: Stand, job: Callable[[], int]) -> None:
    stand.tier.apply(stand.limited(GIB))
    stand.machine.take(job(), 0, 5 * GIB, cgroup=LEAF)
    assert (stand.resident(), stand.spilled()) == (0, 5 * GIB)
    with stand.machine.changed() as books:
        books.spills = False
    with pytest.raises(OutOfMemory):
        stand.machine.take(job(), 0, 5 * GIB, cgroup=LEAF)


def test_a_limit_that_is_taken_and_not_kept_does_not_count(stand: Stand, job: Callable[[], int]) -> None:
    stand.tier.apply(stand.limited(4 * GIB))
    stand.machine.take(job(), 0, 3 * GIB, cgroup=LEAF)
    lower = stand.limited(GIB)
    stand.tier.apply(lower)
    assert not stand.tier.read_back(lower), "the kernel keeps the old one, without an error"
    assert stand.tier.read_back(stand.limited(4 * GIB))
    with stand.machine.changed() as books:
        books.deaf = True
    other = stand.limited(2 * GIB, cgroup=f"{BASE}/l-2/1.0")
    stand.tier.apply(other)
    assert not stand.tier.read_back(other)


def test_a_limit_is_gone_with_the_driver_and_set_again_when_it_is_back(stand: Stand) -> None:
    limited = stand.limited(GIB)
    stand.tier.apply(limited)
    stand.machine.unload(0)
    with pytest.raises(EnforcementError, match="counts no memory"):
        stand.tier.read_back(limited)
    with pytest.raises(EnforcementError):
        stand.tier.apply(limited)
    stand.tier.clear(limited)
    stand.machine.load(0)
    assert not stand.tier.read_back(limited)
    stand.tier.apply(limited)
    assert stand.tier.read_back(limited)


def test_a_controller_that_somebody_switches_off_is_switched_on_again(stand: Stand) -> None:
    limited = stand.limited(GIB)
    stand.tier.apply(limited)
    stand.tree.write("/sys/fs/cgroup/aliquot/cgroup.subtree_control", "-dmem")
    stand.tree.write(f"/sys/fs/cgroup{BASE}/l-1/cgroup.subtree_control", "-dmem")
    assert not stand.tier.read_back(limited)
    stand.tier.apply(limited)
    assert stand.tier.read_back(limited)


def test_cgroups_of_others_that_were_attached_are_held_as_well(stand: Stand) -> None:
    stand.tree.make("/sys/fs/cgroup/jobs/7")
    limited = stand.limited(GIB, attached=("/jobs/7",))
    stand.tier.apply(limited)
    assert stand.tier.read_back(limited)
    stand.tree.write("/sys/fs/cgroup/jobs/7/dmem.max", "drm/0000:03:00.0/vram max")
    assert not stand.tier.read_back(limited)


def test_nothing_is_offered_that_was_not_proven_with_this_kernel(stand: Stand) -> None:
    limited = stand.limited()
    assert "aliquot doctor" in stand.why_not(limited)
    stand.prove("6.15.0")
    assert "6.15.0" in stand.why_not(limited)
    stand.prove()
    assert stand.why_not(limited) == ""
    stand.proofs.write_text("nonsense")
    assert "aliquot doctor" in stand.why_not(limited)


def test_what_the_kernel_cant_limit_is_told_with_the_reason(tmp_path: Path) -> None:
    stand = Stand(tmp_path, ("MI300X", "MAX1550"))
    stand.prove()
    assert "2 regions" in stand.why_not(stand.limited(place=1))
    assert stand.why_not(stand.limited()) == ""
    stand.machine.cut(0, "CPX", "NPS4")
    assert "as a whole" in stand.why_not(stand.limited())
    stand.machine.cut(0, "SPX")
    with stand.machine.changed() as books:
        books.cards[0].counted = False
    assert "counts no memory" in stand.why_not(stand.limited())
    with stand.machine.changed() as books:
        books.controller = False
    assert "CONFIG_CGROUP_DMEM" in stand.why_not(stand.limited())
    nowhere = DmemEnforcer(stand.tree, Cgroups(why_none=lambda: "not mounted", base=lambda: BASE))
    assert "not mounted" in nowhere.available(stand.limited())
    elsewhere = DmemEnforcer(RealTree(str(tmp_path)), Cgroups(base=lambda: BASE))
    assert elsewhere.available(stand.limited())


def test_a_function_of_a_card_is_a_card_to_the_kernel(tmp_path: Path) -> None:
    stand = Stand(tmp_path, ("B60",))
    stand.prove()
    stand.machine.set_virtual(0, 2)
    limited = stand.limited(place=1)
    assert stand.why_not(limited) == ""
    stand.tier.apply(limited)
    assert stand.tier.read_back(limited)


def test_a_limit_is_exact_to_a_page(stand: Stand) -> None:
    limited = stand.limited(GIB + 1)
    stand.tier.apply(limited)
    assert stand.tier.read_back(limited)
    larger = replace(limited.device, memory_total_bytes=1)
    assert stand.tier.read_back(Limited(limited.spec, larger, LEAF)), "what the card has says nothing of the limit"


# the doctor, and an agent


@pytest.fixture
def cgroups() -> None:
    if problem := why_no_tree():
        pytest.skip(problem)


def doctor(machine: Machine, state_dir: Path) -> dict[str, list[tuple[str, str]]]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "aliquot.cli", "doctor", "--json"),
            *("--devices", f"drm:{machine.root}", "--state-dir", str(state_dir)),
        ],
        env={**os.environ, "ALIQUOT_SIMGPU": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    found: dict[str, list[tuple[str, str]]] = {}
    for each in json.loads(done.stdout):
        found.setdefault(each["subject"], []).append((each["mark"], each["text"]))
    return found


@pytest.mark.root("to make cgroups")
@pytest.mark.parametrize(("model", "vendor"), [("MI210", "amd"), ("B580", "intel")])
def test_the_doctor_proves_it_and_writes_that_down(tmp_path: Path, cgroups: None, model: str, vendor: str) -> None:
    machine, state_dir = create(tmp_path / "machine", [model]), tmp_path / "state"
    found = doctor(machine, state_dir)
    ((mark, text),) = found["tier driver"]
    assert (mark, "proven" in text) == ("ok", True), text
    assert proofs.read(state_dir / "proofs.json")[f"dmem/{vendor}"].kernel == KERNEL
    assert found["tier watchdog"][0][0] == "ok"
    with machine.changed():
        pass  # who has ended lets go
    assert not machine.books().held, "nothing is left of the trial"


@pytest.mark.root("to make cgroups")
def test_what_was_proven_is_taken_back_where_it_holds_no_more(tmp_path: Path, cgroups: None) -> None:
    machine, state_dir = create(tmp_path / "machine", ["MI210"]), tmp_path / "state"
    proofs.write(state_dir / "proofs.json", "dmem/amd", proofs.Proof(KERNEL))
    with machine.changed() as books:
        books.deaf = True
    assert doctor(machine, state_dir)["tier driver"][0][0] == "problem"
    assert not proofs.read(state_dir / "proofs.json")


ACTIVE = agent_pb2.SLICE_STATUS_ACTIVE
HOLD = ("-m", "aliquot.simgpu.drm.hold", "--piece", "1Gi", "--seconds", "600")


async def start(node: Node, coordinator: Coordinator, machine: Machine, *, proven: bool) -> DeviceInfo:
    node.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = "driver,watchdog"
    node.environment["ALIQUOT_AGENT_DEVICES"] = f"drm:{machine.root}"
    node.environment["ALIQUOT_SIMGPU"] = ""
    if proven:
        for vendor in ("amd", "intel"):
            proofs.write(node.state_dir / "proofs.json", f"dmem/{vendor}", proofs.Proof(KERNEL))
        node.state_dir.chmod(0o700)
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    return DrmBackend(SimulatedTree(machine.root)).discover().devices[0]


def minor_of(machine: Machine) -> str:
    return str(machine.books().cards[0].parts[0].minor)


@pytest.mark.root("to make cgroups")
async def test_an_agent_holds_a_cheat_by_the_kernels_limit(
    node: Node, coordinator: Coordinator, cgroups: None, tmp_path: Path
) -> None:
    machine = create(tmp_path / "machine", ["MI210"])
    device = await start(node, coordinator, machine, proven=True)
    coordinator.desire(desired(device.uuid, memory_bytes=2 * GIB), full=True)
    report = await coordinator.until_status("l-1.1.0", ACTIVE)
    assert report.tier == Tier.DRIVER.value
    cheat = node.job(sys.executable, *HOLD, str(machine.root), "--minor", minor_of(machine), "--most", "6Gi")

    def held() -> tuple[int, int]:
        own = [each for each in machine.books().held if each.pid == cheat.pid]
        return sum(each.memory_bytes for each in own), sum(each.spilled_bytes for each in own)

    await auntil(lambda: sum(held()) == 6 * GIB, "the cheat has all that it wants, wherever")
    assert held()[0] <= 2 * GIB
    assert cheat.poll() is None
    # The driver is loaded again, and the limit with it.
    machine.unload(0)
    machine.load(0)
    leaf = f"/sys/fs/cgroup{machine.books().held[0].cgroup}" if machine.books().held else ""
    tree = SimulatedTree(machine.root)
    (group,) = [group for group in machine.books().groups if group.endswith("/l-1/1.0")]
    assert leaf in ("", f"/sys/fs/cgroup{group}")
    await auntil(
        lambda: 2 * GIB in parse(tree.read(f"/sys/fs/cgroup{group}/dmem.max")).values(), "the limit is there again"
    )


async def test_an_agent_holds_a_cheat_by_the_watchdog_where_nothing_was_proven(
    node: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    machine = create(tmp_path / "machine", ["B580"])
    device = await start(node, coordinator, machine, proven=False)
    told = coordinator.snapshots[-1].node.devices[0]
    assert (told.uuid, told.vendor) == (device.uuid, "intel")
    assert Tier.DRIVER.value not in set(told.tiers)
    coordinator.desire(desired(device.uuid, memory_bytes=2 * GIB), full=True)
    report = await coordinator.until_status("l-1.1.0", ACTIVE)
    assert report.tier == Tier.WATCHDOG.value
    cheat = node.job(sys.executable, *HOLD, str(machine.root), "--minor", minor_of(machine), "--most", "6Gi")
    await auntil(lambda: cheat.poll() is not None, "the cheat was ended")
    assert cheat.returncode in ENDED
    modest = node.job(sys.executable, *HOLD, str(machine.root), "--minor", minor_of(machine), "--most", "1Gi")
    await auntil(lambda: any(each.pid == modest.pid for each in machine.books().held), "who keeps to it may go on")
