"""Reads request lists: the public openb CSV columns, and our own.

openb: num_gpu and gpu_milli; where wanted name, cpu_milli, memory_mib, gpu_spec (models joined by `|`), creation_time
and deletion_time in seconds. Its published lists differ in which of these they have.

Ours has a column `gpu` with a request as people write it (`0.25(A100),10Gi`), and where wanted `name`, `cpu` (4, 500m),
`memory` (16Gi, of the host), `gang` (members), `arrival_s` and `duration_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from aliquot.common import catalog
from aliquot.common.errors import ConfigError
from aliquot.common.files import MANY, naming, read_csv, refuse_unknown, whole
from aliquot.common.limits import MAX_GANG_SIZE, MIB, WHOLE_SHARE_MILLI
from aliquot.common.quantity import parse_bytes, parse_milli
from aliquot.common.request import parse_request
from aliquot.coordinator.core.values.types import Demand

_OURS = {"gpu", "name", "cpu", "memory", "gang", "arrival_s", "duration_s"}
_OPENB = {"name", "num_gpu", "gpu_milli", "gpu_spec", "cpu_milli", "memory_mib", "creation_time", "deletion_time"}


class TraceRequest(NamedTuple):
    """One line of a request list."""

    name: str
    demand: Demand
    arrival_s: float
    duration_s: float
    """0: for good, or not stated."""


def read_requests(path: Path) -> list[TraceRequest]:
    """Either kind of list, told apart by its head line. Raises `ConfigError` that names file and line."""
    columns, rows = read_csv(path)
    if "gpu" in columns:
        refuse_unknown(path, columns, _OURS)
        return [_ours(path, line, row) for line, row in rows]
    refuse_unknown(path, columns, _OPENB, misspelt=True)
    return [_openb(path, line, row) for line, row in rows]


def read_openb_pods(path: Path) -> list[TraceRequest]:
    """An openb pod list, whose other columns say what became of the pods. Raises `ConfigError`."""
    return [_openb(path, line, row) for line, row in read_csv(path)[1]]


def _openb(path: Path, line: int, row: Mapping[str, str]) -> TraceRequest:
    missing = [column for column in ("num_gpu", "gpu_milli") if not row.get(column)]
    if missing:
        raise ConfigError(
            f"{path}:{line}: no {' and no '.join(missing)}",
            hint="a list has the column `gpu`, or openb's columns: at least num_gpu and gpu_milli",
        )
    with naming(f"{path}:{line}"):
        count = whole(row, "num_gpu") or 0
        share_milli = min(whole(row, "gpu_milli") or 0, WHOLE_SHARE_MILLI) if count else 0
        created, deleted = _seconds(row, "creation_time"), _seconds(row, "deletion_time")
        cpu_milli, host_mib = whole(row, "cpu_milli") or 0, whole(row, "memory_mib") or 0
    models = (row.get("gpu_spec") or "").split("|")
    spec = tuple(sorted(catalog.canonical_name(model) for model in models if model))
    demand = Demand(
        count=count,
        share_milli=share_milli,
        models=(spec,) if spec and count else (),
        cpu_milli=cpu_milli,
        host_memory_bytes=host_mib * MIB,
    )
    return TraceRequest(row.get("name") or str(line), demand, created, max(deleted - created, 0.0))


def _ours(path: Path, line: int, row: Mapping[str, str]) -> TraceRequest:
    with naming(f"{path}:{line}"):
        gpu = parse_request(row["gpu"])
        demand = Demand(
            count=gpu.count,
            share_milli=gpu.share_milli or 0,
            memory_bytes=gpu.memory_bytes or 0,
            models=tuple(map(catalog.with_families, gpu.models)),
            vendor=gpu.vendor or "",
            mig_profile=gpu.mig_profile or "",
            vendors=gpu.vendors,
            gang_size=whole(row, "gang", most=MAX_GANG_SIZE) or 1,
            cpu_milli=parse_milli(row.get("cpu") or "0"),
            host_memory_bytes=parse_bytes(row.get("memory") or "0"),
        )
        times = _seconds(row, "arrival_s"), _seconds(row, "duration_s")
    return TraceRequest(row.get("name") or str(line), demand, *times)


def _seconds(row: Mapping[str, str], name: str) -> float:
    """None are 0. Raises `ConfigError`, also for what no clock shows: `nan`, `inf`, less than nothing."""
    text = row.get(name) or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < MANY:
        raise ConfigError(f"{name} is {text!r}", hint=f"write seconds, such as 60 or 1.5, below {MANY}")
    return seconds
