"""Reads request lists and node lists: the public openb CSV columns, and our own.

openb pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec (models joined by `|`), and times in
seconds. openb nodes: sn, cpu_milli, memory_mib, gpu, model. Our own request list has the columns `count,
share_milli, memory_bytes, cpu_milli, models, gang_size, arrival_s, duration_s`, all but `count` optional.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from aliquot.coordinator.core.types import Demand, DeviceSpec, NodeSpec

MIB = 1 << 20
GIB = 1 << 30
WHOLE = 1000

DECLARED_MEMORY_BYTES = 32 * GIB
"""openb does not say how much memory its devices have, and no policy of the study looks at it."""


class TraceRequest(NamedTuple):
    """One line of a request list."""

    name: str
    demand: Demand
    arrival_s: float
    duration_s: float


class TraceError(ValueError):
    """A list that can't be read; says which line and what to write there."""


def read_openb_nodes(path: Path) -> list[NodeSpec]:
    """Nodes in the order of the file; devices are named after their node."""
    return [
        NodeSpec(
            node_id=row["sn"],
            name=row["sn"],
            devices=tuple(
                DeviceSpec(f"{row['sn']}/{index}", row["model"], DECLARED_MEMORY_BYTES, index=index)
                for index in range(int(row["gpu"]))
            ),
            cpu_milli=int(row["cpu_milli"]),
            host_memory_bytes=int(row["memory_mib"]) * MIB,
        )
        for row in _rows(path, "sn", "cpu_milli", "memory_mib", "gpu", "model")
    ]


def read_openb_pods(path: Path) -> list[TraceRequest]:
    """Pods in the order of the file."""
    pods = []
    for row in _rows(path, "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"):
        count = int(row["num_gpu"])
        spec = tuple(sorted(model for model in row["gpu_spec"].split("|") if model))
        created = float(row.get("creation_time") or 0)
        deleted = float(row.get("deletion_time") or 0)
        pods.append(
            TraceRequest(
                row["name"],
                Demand(
                    count=count,
                    share_milli=min(int(row["gpu_milli"]), WHOLE) if count else 0,
                    models=(spec,) if spec and count else (),
                    cpu_milli=int(row["cpu_milli"]),
                    host_memory_bytes=int(row["memory_mib"]) * MIB,
                ),
                created,
                max(deleted - created, 0.0),
            )
        )
    return pods


def _rows(path: Path, *columns: str) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(f"{path} has no column {', '.join(missing)}; its columns are {reader.fieldnames}")
        return list(reader)
