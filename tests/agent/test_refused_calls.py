"""What a driver refuses of one link, one MIG instance or one event is refused of that one, and no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.agent.harness import Node, closing, make_node
from tests.agent.test_device_layer import _partition

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


def answered(node: Node, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", REFUSING + program, str(node.scenario_path)],
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


def test_a_mig_instance_that_is_refused_is_told_of_and_takes_no_other_away(tmp_path: Path) -> None:
    for node in closing(make_node(tmp_path / "mig", ("A100-40",))):
        _partition(node)
        said = answered(node, OF_INSTANCES)
        assert said.startswith("['1g.5gb'] GPU 0 ("), said
        assert "MIG instance 0: MigDeviceHandleByIndex 0: " in said
        assert "Insufficient Permissions" in said


def test_a_number_that_no_mig_instance_has_hides_none_behind_it(tmp_path: Path) -> None:
    for node in closing(make_node(tmp_path / "mig", ("A100-40",))):
        _partition(node)
        assert answered(node, OF_HOLES) == "['1g.5gb']"
