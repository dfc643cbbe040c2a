"""What a driver refuses of one link, one MIG instance or one event is refused of that one, and no more."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.agent.devices.base import DeviceError
from aliquot.agent.devices.owners import Owners
from aliquot.agent.devices.tpu import TpuBackend
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import Node, closing, desired, make_node
from tests.agent.test_device_layer import _partition
from tests.agent.test_observers_fault import conditions

REFUSING = """
import sys
import pynvml
from aliquot.agent.devices import nvml_topology
from aliquot.agent.devices.nvml import NvmlBackend
from aliquot.simgpu import Scenario

def refuse(name, which):
    real = getattr(pynvml, name)
    def call(*args):
        if which(*args):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return real(*args)
    setattr(pynvml, name, call)

backend = NvmlBackend()
backend.open()
scenario = Scenario(sys.argv[1])
"""
OF_LINKS = """
refuse("nvmlDeviceGetNvLinkState", lambda handle, link: link == 0)
islands = [device.fabric_island for device in backend.discover().devices]
up = nvml_topology.links_up(backend._query, "GPU-any", pynvml.nvmlDeviceGetHandleByIndex(0))
print(islands, up)
"""
OF_EVENTS = """
backend.discover()
backend.wait_events(0)
first = [True]
refuse("nvmlDeviceGetUUID", lambda handle: first and first.pop())
for device in (0, 1):
    scenario.raise_xid(device, 48)
told = [event for _ in range(2) for event in backend.wait_events(1000)]
print([(event.uuid, event.xid) for event in told])
"""
OF_INSTANCES = """
refuse("nvmlDeviceGetMigDeviceHandleByIndex", lambda handle, number: number == 0)
found = backend.discover()
print([device.mig_profile for device in found.devices], *found.problems)
"""
OF_HOLES = """
def absent(handle, number, real=pynvml.nvmlDeviceGetMigDeviceHandleByIndex):
    if number == 0:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return real(handle, number)
pynvml.nvmlDeviceGetMigDeviceHandleByIndex = absent
found = backend.discover()
print([device.mig_profile for device in found.devices], *found.problems)
"""
LATER = """
from aliquot.agent.core.partitioning import difference
from aliquot.agent.devices.base import with_unread
from aliquot.agent.enforce import mig_geometry

def look(before):
    found = backend.discover()
    there = with_unread(before, found.devices, found.problems)
    for uuid in there:
        backend.memory(uuid)
    return found, there

before = look({})[1]
refuse(sys.argv[2], lambda *arguments: sys.argv[3] in ("", str(arguments[-1])))
found, there = look(before)
print(there == before, bool(found.problems))
"""
"""What is known of devices before a call is refused, and after."""
THEN_DESTROYED = """
card = found.cards[0]
first = next(part for part, uuid in card.parts if uuid == next(iter(before)))
assert all(uuid for _, uuid in card.parts), "what is refused has its place on the card, so that nobody cuts there"
existing = mig_geometry.read_instances(card.uuid, card.profiles)
wanted = [part for part in card.geometry if part != first]
mig_geometry.apply(card.uuid, difference(card.profiles, existing, wanted))
print(list(look(there)[1]) == list(before)[1:])
"""


def answered(node: Node, program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", REFUSING + program, str(node.scenario_path), *arguments],
        env=node.base_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_link_that_is_refused_hides_no_other(node: Node) -> None:
    assert answered(node, OF_LINKS) == "[0, 0] 11", "of twelve"


def test_an_event_whose_card_is_refused_leaves_the_next_its_name(node: Node) -> None:
    assert answered(node, OF_EVENTS) == str([("", 48), (node.uuids[1], 48)])


@pytest.mark.root("to cut cards")
def test_a_mig_instance_that_is_refused_is_told_of_and_takes_no_other_away(tmp_path: Path) -> None:
    for node in closing(make_node(tmp_path / "mig", ("A100-40",))):
        _partition(node)
        said = answered(node, OF_INSTANCES)
        assert said.startswith("['1g.5gb'] GPU 0 ("), said
        assert "MIG instance 0: MigDeviceHandleByIndex 0: " in said
        assert "Insufficient Permissions" in said


@pytest.mark.root("to cut cards")
def test_a_number_that_no_mig_instance_has_hides_none_behind_it(tmp_path: Path) -> None:
    for node in closing(make_node(tmp_path / "mig", ("A100-40",))):
        _partition(node)
        assert answered(node, OF_HOLES) == "['1g.5gb']"


@pytest.mark.root("to cut cards")
def test_a_mig_instance_that_is_refused_later_is_there_until_it_is_destroyed(tmp_path: Path) -> None:
    for node in closing(make_node(tmp_path / "mig", ("A100-40",))):
        _partition(node)
        said = answered(node, LATER + THEN_DESTROYED, "nvmlDeviceGetMigDeviceHandleByIndex", "0")
        assert said.splitlines() == ["True True", "True"]


@pytest.mark.root("to cut cards")
@pytest.mark.parametrize("call", ["nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetUUID"])
def test_a_card_whose_parts_cant_be_asked_for_later_has_them_still(tmp_path: Path, call: str) -> None:
    for node in closing(make_node(tmp_path / "mig", ("A100-40",))):
        _partition(node)
        assert answered(node, LATER, call, "") == "True True", "it is never taken for a whole card"


@pytest.mark.parametrize(
    ("call", "of", "told"),
    [
        ("nvmlDeviceGetHandleByIndex", "0", True),
        ("nvmlDeviceGetUUID", "", True),
        ("nvmlDeviceGetName", "", True),
        ("nvmlDeviceGetNvLinkState", "", False),
        ("nvmlDeviceGetNvLinkRemoteDeviceType", "", False),
    ],
)
def test_cards_and_links_that_are_refused_later_are_what_they_were(node: Node, call: str, of: str, told: bool) -> None:
    assert answered(node, LATER, call, of) == f"True {told}", "and it is measured as before"


@pytest.mark.root("to cut cards")
async def test_a_leased_instance_that_is_refused_keeps_its_lease_and_the_pool_is_told(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    for node in closing(make_node(tmp_path / "mig", ("A100-40",))):
        _partition(node)
        node.environment |= {"ALIQUOT_AGENT_POLL_DISCOVERY": "500ms", "TEST_REFUSES": str(tmp_path / "refuses")}
        await asyncio.to_thread(node.start, coordinator.address, program=("-m", "tests.agent.refusing_agent"))
        await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
        first, second = coordinator.snapshots[0].node.devices
        whole = first.memory_total_bytes - first.memory_reserved_bytes
        coordinator.desire(desired(first.uuid, share_milli=1000, memory_bytes=whole))
        await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_ACTIVE)
        job = await asyncio.to_thread(node.burn, "1Gi")

        (tmp_path / "refuses").write_text("0")
        await coordinator.until(lambda: "MIG instance 0" in conditions(coordinator).get("devices", ""), "it is told")
        assert {each.uuid for each in coordinator.snapshots[-1].node.devices} == {first.uuid, second.uuid}
        slices = {each.slice_id: each.status for each in coordinator.snapshots[-1].slices}
        assert slices == {"l-1.1.0": agent_pb2.SLICE_STATUS_ACTIVE}
        assert job.poll() is None

        (tmp_path / "refuses").unlink()
        await coordinator.until(lambda: "devices" not in conditions(coordinator), "and that it is over")
        assert job.poll() is None


def test_a_chip_that_cant_be_read_later_has_not_left_the_bus(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"sys/bus/pci/devices/0000:00:0{number}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x1ae0\n")
        (folder / "device").write_text("0x006f\n")
    backend = TpuBackend(tmp_path / "sys", Owners(tmp_path / "proc", fresh_s=0))
    backend.open()
    second = backend.discover().devices[1]
    unreadable = tmp_path / "sys/bus/pci/devices/0000:00:00.0/vendor"
    unreadable.unlink()
    unreadable.mkdir()
    with pytest.raises(DeviceError, match="can't be read"):
        backend.discover()
    assert backend.visibility([second])["TPU_VISIBLE_CHIPS"] == "1", "the others keep their numbers"
