"""What a node publishes for Dynamic Resource Allocation: each device with so many percent and so much memory.

Capacities are whole numbers with a step: of a quantity such as 250m the API server makes 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aliquot.common.quantity import parse_bytes
from aliquot.kube.core.claims import DRIVER, MEMORY, PERCENT, UUID
from aliquot.kube.node.core.resources import MIB, PoolDevice

UNHEALTHY = "aliquot.dev/unhealthy"
"""The key of the taint of a device that is ill."""
_NAME_CHARS_MAX = 63
_UNFIT = re.compile(r"[^a-z0-9]+")


def device_name(uuid: str) -> str:
    """A device's name in a ResourceSlice: a label of letters, digits and dashes."""
    return _UNFIT.sub("-", uuid.lower()).strip("-")[:_NAME_CHARS_MAX].rstrip("-")


def resource_slice(node: str, node_uid: str, devices: Sequence[PoolDevice], generation: int) -> dict[str, Any]:
    """The ResourceSlice of a node. It goes with its Node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(node), "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": [_written(device) for device in sorted(devices, key=lambda device: device.uuid)],
        },
    }


def slice_name(node: str) -> str:
    """The object's name."""
    return f"{node[: 253 - len(DRIVER) - 1]}-{DRIVER}"


def same_devices(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a spec that was read says what is wanted. The API server writes quantities in its own way, and times."""
    return [_compared(each) for each in there.get("devices") or ()] == [_compared(each) for each in wanted["devices"]]


def _compared(device: Mapping[str, Any]) -> tuple[object, ...]:
    capacity = {name: parse_bytes(str(each["value"])) for name, each in sorted(device["capacity"].items())}
    taints = [(each["key"], each.get("value")) for each in device.get("taints") or ()]
    return device["name"], device["attributes"], tuple(capacity.items()), tuple(taints)


def _written(device: PoolDevice) -> dict[str, Any]:
    memory_mib = device.memory_bytes // MIB
    written: dict[str, Any] = {
        "name": device_name(device.uuid),
        "allowMultipleAllocations": True,
        "attributes": {UUID: {"string": device.uuid}, "model": {"string": device.model[:64]}},
        "capacity": {
            PERCENT: _capacity(str(device.percent), "1"),
            MEMORY: _capacity(f"{memory_mib}Mi", "1Mi"),
        },
    }
    if not device.healthy or not device.percent or not memory_mib:
        reason = "unhealthy" if not device.healthy else "full"
        written["taints"] = [{"key": UNHEALTHY, "value": reason, "effect": "NoSchedule"}]
    return written


def _capacity(value: str, step: str) -> dict[str, Any]:
    """A claim that does not say how much gets all of it."""
    policy = {"default": value, "validRange": {"min": step, "step": step}}
    return {"value": value, "requestPolicy": policy} if not value.startswith("0") else {"value": value}
