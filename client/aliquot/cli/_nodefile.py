"""Files that describe nodes: YAML, JSON or TOML for people, CSV for exports and public traces.

YAML, JSON and TOML hold a list under `nodes`::

    nodes:
      - name: gpu-1
        devices: [{model: A100-80, count: 4}]     # memory: 80Gi, vendor: amd, uuid: … if the catalogue is not enough
        pool: training                             # labels, agentless, cpu (4, 500m) and memory (512Gi) too

CSV has a header. Its columns are `name` (or `sn`), `model`, `gpus` (or `gpu`), and optionally `memory_per_gpu`, `cpu`
(or `cpu_milli`), `host_memory` (or `memory_mib`) and `pool`. Lines without devices are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aliquot.client import DeviceDeclaration, NodeDeclaration
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.files import read_csv, read_document, text_of
from aliquot.common.limits import MIB
from aliquot.common.quantity import parse_bytes, parse_milli

_NODE_KEYS = {"name", "node_id", "devices", "pool", "labels", "agentless", "cpu", "memory"}
_DEVICE_KEYS = {"model", "count", "memory", "uuid", "vendor"}


def read_nodes(path: Path, *, agentless: bool = False, pool: str = "") -> list[NodeDeclaration]:
    """The nodes of a file. `agentless` and `pool` are defaults. Raises `ConfigError`."""
    try:
        if path.suffix.lower() == ".csv":
            found = _read_csv(path, agentless, pool)
        else:
            found = _read_document(path, agentless, pool)
    except AliquotError as error:
        named = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise ConfigError(named, hint=error.hint) from error
    if not found:
        raise ConfigError(f"{path} describes no node", hint="write a line for each, below the head")
    return found


def _read_document(path: Path, agentless: bool, pool: str) -> list[NodeDeclaration]:  # noqa: FBT001
    document = read_document(path)
    nodes = document.get("nodes") if isinstance(document, Mapping) else document
    if not isinstance(nodes, list) or not nodes:
        raise ConfigError("no list of nodes", hint="write them as a list under `nodes`")
    return [_read_node(node, f"nodes[{index}]", agentless, pool) for index, node in enumerate(nodes)]


def _read_node(node: Any, where: str, agentless: bool, pool: str) -> NodeDeclaration:  # noqa: ANN401, FBT001
    _check_keys(node, _NODE_KEYS, where)
    devices: list[DeviceDeclaration] = []
    for index, device in enumerate(node.get("devices") or ()):
        place = f"{where}.devices[{index}]"
        _check_keys(device, _DEVICE_KEYS, place)
        count = device.get("count", 1)
        if not isinstance(count, int) or not 1 <= count <= 256:
            raise ConfigError(f"{place}.count: {count!r} is not a number from 1 to 256")
        memory = device.get("memory")
        made = DeviceDeclaration(
            model=text_of(device, "model", place),
            uuid=text_of(device, "uuid", place, needed=False),
            memory_bytes=0 if memory is None else parse_bytes(str(memory)),
            vendor=text_of(device, "vendor", place, needed=False),
        )
        devices += [made] * count
    cpu, memory = node.get("cpu"), node.get("memory")
    return NodeDeclaration(
        name=text_of(node, "name", where),
        node_id=text_of(node, "node_id", where, needed=False),
        devices=devices,
        pool=text_of(node, "pool", where, needed=False) or pool,
        labels={str(key): str(value) for key, value in (node.get("labels") or {}).items()},
        agentless=bool(node.get("agentless", agentless)),
        cpu_milli=None if cpu is None else parse_milli(str(cpu)),
        host_memory_bytes=None if memory is None else parse_bytes(str(memory)),
    )


def _check_keys(value: Any, known: set[str], where: str) -> None:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: a table was expected, not {type(value).__name__}")
    unknown = sorted(set(map(str, value)) - known)
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]}: unknown", hint=f"one of {', '.join(sorted(known))}")


def _read_csv(path: Path, agentless: bool, pool: str) -> list[NodeDeclaration]:  # noqa: FBT001
    columns, rows = read_csv(path)
    if not columns & {"name", "sn"} or "model" not in columns or not columns & {"gpus", "gpu"}:
        raise ConfigError(
            f"its columns are {', '.join(sorted(columns)) or 'none'}", hint="name, model and gpus are needed"
        )
    return [node for number, row in rows if (node := _read_row(row, f"line {number}", agentless, pool)) is not None]


def _read_row(
    row: Mapping[str, str],
    where: str,
    agentless: bool,  # noqa: FBT001
    pool: str,
) -> NodeDeclaration | None:
    count = _first(row, "gpus", "gpu") or "0"
    count = count.removesuffix(".0")  # as spreadsheets write it
    if not count.isdecimal():
        raise ConfigError(f"{where}: {count!r} is not a number of GPUs", hint="write a whole number, such as 4")
    if int(count) == 0:
        return None
    model, memory = _first(row, "model"), _first(row, "memory_per_gpu")
    if not model:
        raise ConfigError(f"{where}: no model")
    device = DeviceDeclaration(model, memory_bytes=parse_bytes(memory) if memory else 0)
    cpu, cpu_milli = _first(row, "cpu"), _first(row, "cpu_milli")
    host, host_mib = _first(row, "host_memory"), _first(row, "memory_mib")
    return NodeDeclaration(
        name=_first(row, "name", "sn"),
        devices=[device] * int(count),
        pool=_first(row, "pool") or pool,
        agentless=agentless,
        cpu_milli=parse_milli(cpu) if cpu else int(cpu_milli) if cpu_milli else None,
        host_memory_bytes=parse_bytes(host) if host else int(host_mib) * MIB if host_mib else None,
    )


def _first(row: Mapping[str, str], *names: str) -> str:
    return next((text for name in names if (text := row.get(name))), "")
