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

from aliquot.cli._document import Found, Parse, Shape, each, flag, milli, number, read_file, size, text, texts
from aliquot.client import DeviceDeclaration, NodeDeclaration
from aliquot.common.errors import ConfigError
from aliquot.common.files import NODE_COLUMNS, naming, read_csv, refuse_unknown, whole
from aliquot.common.limits import MAX_DEVICES_PER_NODE, MIB
from aliquot.common.quantity import parse_bytes, parse_milli


def read_nodes(path: Path, *, agentless: bool = False, pool: str = "") -> list[NodeDeclaration]:
    """The nodes of a file. `agentless` and `pool` are defaults. Raises `ConfigError`."""
    if path.suffix.lower() != ".csv":
        return read_file(path, _document(agentless, pool))
    with naming(path):
        found = _read_csv(path, agentless, pool)
    if not found:
        raise ConfigError(f"{path} describes no node", hint="write a line for each, below the head")
    return found


def _document(agentless: bool, pool: str) -> Parse[list[NodeDeclaration]]:  # noqa: FBT001
    shape = Shape(
        NodeDeclaration,
        {
            "name": text,
            "node_id": text,
            "devices": _devices,
            "pool": text,
            "labels": texts,
            "agentless": flag,
            "cpu": ("cpu_milli", milli),
            "memory": ("host_memory_bytes", size),
        },
        needed=["name"],
        default={"agentless": agentless, "pool": pool},
    )

    def read(value: Found, where: str) -> list[NodeDeclaration]:
        nodes = value.get("nodes") if isinstance(value, Mapping) else value
        if not isinstance(nodes, list) or not nodes:
            raise ConfigError("no list of nodes", hint="write them as a list under `nodes`")
        return list(each(shape)(nodes, f"{where}nodes"))

    return read


def _devices(value: Found, where: str) -> list[DeviceDeclaration]:
    return [device for several in each(_DEVICE)(value, where) for device in several]


def _several(count: int = 1, **device: str | int) -> list[DeviceDeclaration]:
    return [DeviceDeclaration(**device)] * count  # type: ignore[arg-type]


_DEVICE = Shape(
    _several,
    {
        "model": text,
        "count": number(1, 256, "a number"),
        "memory": ("memory_bytes", size),
        "uuid": text,
        "vendor": text,
    },
    needed=["model"],
)


def _read_csv(path: Path, agentless: bool, pool: str) -> list[NodeDeclaration]:  # noqa: FBT001
    columns, rows = read_csv(path)
    if not columns & {"name", "sn"} or "model" not in columns or not columns & {"gpus", "gpu"}:
        raise ConfigError(
            f"its columns are {', '.join(sorted(columns)) or 'none'}", hint="name, model and gpus are needed"
        )
    refuse_unknown(path, columns, NODE_COLUMNS)
    return [node for number, row in rows if (node := _read_row(row, f"line {number}", agentless, pool)) is not None]


def _read_row(
    row: Mapping[str, str],
    where: str,
    agentless: bool,  # noqa: FBT001
    pool: str,
) -> NodeDeclaration | None:
    with naming(where):
        count = whole(row, "gpus", "gpu", most=MAX_DEVICES_PER_NODE)
        cpu_milli, host_mib = whole(row, "cpu_milli"), whole(row, "memory_mib")
    if not count:
        return None
    model, memory = _first(row, "model"), _first(row, "memory_per_gpu")
    if not model:
        raise ConfigError(f"{where}: no model")
    device = DeviceDeclaration(model, memory_bytes=parse_bytes(memory) if memory else 0)
    cpu, host = _first(row, "cpu"), _first(row, "host_memory")
    return NodeDeclaration(
        name=_first(row, "name", "sn"),
        devices=[device] * count,
        pool=_first(row, "pool") or pool,
        agentless=agentless,
        cpu_milli=parse_milli(cpu) if cpu else cpu_milli,
        host_memory_bytes=parse_bytes(host) if host else host_mib * MIB if host_mib else None,
    )


def _first(row: Mapping[str, str], *names: str) -> str:
    return next((text for name in names if (text := row.get(name))), "")
