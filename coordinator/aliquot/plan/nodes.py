"""Reads descriptions of pools: openb's node list, what `aliquot declare` reads, and what `aliquot nodes --json` prints.

So a plan for the pool as it is now is `aliquot nodes --json | aliquot plan --nodes - …`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from aliquot.common import catalog
from aliquot.common.errors import ConfigError
from aliquot.common.files import NODE_COLUMNS, naming, read_csv, read_document, refuse_unknown, whole
from aliquot.common.limits import GIB, MAX_DEVICES_PER_NODE, MIB
from aliquot.common.quantity import parse_bytes, parse_milli
from aliquot.coordinator.core.values.types import UNKNOWN, WHOLE_SHARE_MILLI, DeviceSpec, NodeSpec

UNSTATED_MEMORY_BYTES = 32 * GIB
"""For models that the catalogue does not know and lists that don't say: openb's lists, for one."""


def read_nodes(path: Path) -> list[NodeSpec]:
    """The nodes of a CSV, YAML, JSON or TOML file, or of `-` (standard input). Raises `ConfigError`."""
    try:
        with naming(path):
            if path.suffix.lower() == ".csv":
                columns, rows = read_csv(path)
                refuse_unknown(path, columns, NODE_COLUMNS)
                return [_from_row(row, f"line {line}") for line, row in rows]
            document = read_document(path)
            return [_from_document(node, number) for number, node in enumerate(_list_of_nodes(document))]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} can't be read: {error}", hint="CSV, YAML, JSON and TOML are read") from error


def more_of(nodes: Iterable[NodeSpec], count: int, like: str = "") -> list[NodeSpec]:
    """`count` more nodes like the named one, or like the most frequent kind. Raises `ConfigError`."""
    known = list(nodes)
    if like:
        template = next((node for node in known if like in (node.name, node.node_id)), None)
        if template is None:
            raise ConfigError(f"no node {like!r}", hint="name a node of the list")
    else:
        kinds: dict[tuple[object, ...], list[NodeSpec]] = {}
        for node in known:
            models = tuple((d.model, d.memory_total_bytes, d.mig_profile) for d in node.devices)
            kinds.setdefault((models, node.cpu_milli, node.host_memory_bytes), []).append(node)
        template = max(kinds.values(), key=len)[0]
    return [_copy(template, f"{template.name}+{number + 1}") for number in range(count)]


def _copy(node: NodeSpec, name: str) -> NodeSpec:
    devices = tuple(replace(device, uuid=f"{name}/{device.index}") for device in node.devices)
    return replace(node, node_id=name, name=name, devices=devices)


def _from_row(row: Mapping[str, str], where: str) -> NodeSpec:
    name = row.get("name") or row["sn"]
    model = row.get("model") or ""
    memory = row.get("memory_per_gpu")
    with naming(where):
        cpu, host_mib = whole(row, "cpu_milli"), whole(row, "memory_mib")
        if cpu is None:
            cpu = parse_milli(row["cpu"]) if row.get("cpu") else UNKNOWN
        host = UNKNOWN if host_mib is None else host_mib * MIB
        if row.get("host_memory"):
            host = parse_bytes(row["host_memory"])
        count = whole(row, "gpus", "gpu", most=MAX_DEVICES_PER_NODE) or 0
        memory_bytes = parse_bytes(memory) if memory else 0
    devices = tuple(_device(name, index, model, memory_bytes) for index in range(count))
    return NodeSpec(name, name, devices, pool=row.get("pool") or "default", cpu_milli=cpu, host_memory_bytes=host)


def _list_of_nodes(document: Any) -> list[Any]:  # noqa: ANN401 - whatever the file holds
    nodes = document.get("nodes") if isinstance(document, Mapping) else document
    if not isinstance(nodes, list) or not nodes:
        raise ConfigError("no list of nodes", hint="write them as a list under `nodes`")
    return nodes


def _from_document(node: Any, number: int) -> NodeSpec:  # noqa: ANN401 - whatever the file holds
    if not isinstance(node, Mapping):
        raise ConfigError(f"nodes[{number}] is no description of a node", hint="write name and devices")
    name = str(node.get("name") or node.get("node_id") or f"node-{number}")
    devices: list[DeviceSpec] = []
    for device in node.get("devices") or ():
        if "memory_total_bytes" in device:
            devices.append(_listed_device(name, len(devices), device))
        else:
            memory = parse_bytes(str(device["memory"])) if device.get("memory") else 0
            devices += [
                _device(name, len(devices) + offset, str(device["model"]), memory)
                for offset in range(int(device.get("count", 1)))
            ]
    cpu, host = node.get("cpu_milli", UNKNOWN), node.get("host_memory_bytes", UNKNOWN)
    return NodeSpec(
        node_id=str(node.get("node_id") or name),
        name=name,
        devices=tuple(devices),
        labels=tuple(sorted((str(key), str(value)) for key, value in (node.get("labels") or {}).items())),
        pool=str(node.get("pool") or "default"),
        failure_domain=str(node.get("failure_domain") or ""),
        cpu_milli=parse_milli(str(node["cpu"])) if node.get("cpu") else _known(cpu),
        host_memory_bytes=parse_bytes(str(node["memory"])) if node.get("memory") else _known(host),
    )


def _known(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _listed_device(name: str, number: int, device: Mapping[str, Any]) -> DeviceSpec:
    """A device as `aliquot nodes --json` prints it."""
    return DeviceSpec(
        uuid=str(device.get("uuid") or f"{name}/{number}"),
        model=str(device["model"]),
        memory_total_bytes=int(device["memory_total_bytes"]),
        memory_reserved_bytes=int(device.get("memory_reserved_bytes") or 0),
        vendor=str(device.get("vendor") or "nvidia"),
        index=int(device.get("index") or number),
        mig_profile=str(device.get("mig_profile") or ""),
        compute_milli=int(device.get("compute_milli") or WHOLE_SHARE_MILLI),
        nvlink_island=_known(device.get("fabric_island", device.get("nvlink_island"))),
        numa_node=_known(device.get("numa_node")),
    )


def _device(node: str, index: int, model: str, memory_bytes: int) -> DeviceSpec:
    name = catalog.canonical_name(model)
    memory = memory_bytes or catalog.memory_total_bytes(name) or UNSTATED_MEMORY_BYTES
    return DeviceSpec(f"{node}/{index}", name, memory, index=index, vendor=catalog.vendor_of(name) or "nvidia")
