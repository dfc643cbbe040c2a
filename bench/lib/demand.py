"""Nine hourly series of demand from the public lists: devices that were asked for, hour by hour.

    openb           all requests of the cluster; those for whole devices; those for shares. From day 115 on: before,
                    the list has 25 of its 7,064 requests with devices
    DLRM            GPU nodes' instances of the serving cluster: 31 days
    Philly          virtual cluster 103959 with its real durations, and four with estimated ones: those of most jobs
                    that last over six weeks. Each begins at its own first job, so they are never added up

Openb's two larger kinds of service (`kinds`) are measured beside them and not counted: they are parts of the others.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from aliquot.forecast.models import Floats
from bench.lib.philly import read_jobs

HOUR_S = 3600
DAY_S = 86_400
OPENB_FROM_DAY = 115
COUNTED = ("openb all", "openb whole devices", "openb shares")
CLUSTERS = ("11cb48", "6214e9", "ee9e8c", "0e4a51")
DLRM_DAYS = 31

Interval = tuple[float, float, float]
"""(from, to, devices), times in seconds."""


def hourly(intervals: Iterable[Interval], start_s: int, end_s: int) -> Floats:
    """The mean number of devices in each whole hour of [start, end)."""
    count = (end_s - start_s) // HOUR_S
    hours = np.zeros(count + 1)
    steps = np.zeros(count + 2)
    for begin, finish, devices in intervals:
        begin_h = (min(max(begin, start_s), end_s) - start_s) / HOUR_S
        finish_h = (min(max(finish, start_s), end_s) - start_s) / HOUR_S
        first, last = int(begin_h), int(finish_h)
        hours[min(first, count)] += devices * (min(first + 1, finish_h) - begin_h)
        if last > first:
            hours[min(last, count)] += devices * (finish_h - last)
            steps[first + 1] += devices
            steps[last] -= devices
    return np.asarray((hours + np.cumsum(steps)[: count + 1])[:count], np.float64)


def series(traces: Path) -> dict[str, Floats]:
    """By name. Raises OSError where a list is not there."""
    counted = {name: found for name, found in openb(traces / "openb").items() if name in COUNTED}
    return {**counted, **dlrm(traces / "alibaba-dlrm-2025"), **philly(traces / "philly-derived")}


def kinds(traces: Path) -> dict[str, Floats]:
    """Two series more: what openb calls latency-sensitive, and best-effort."""
    found = openb(traces / "openb")
    return {name: found[name] for name in ("openb LS", "openb BE")}


def openb(folder: Path) -> dict[str, Floats]:
    """Series of five weeks: all, by size, and by kind of service."""
    kinds: dict[str, list[Interval]] = {"openb all": [], "openb whole devices": [], "openb shares": []}
    end_s = 0.0
    with (folder / "openb_pod_list_default.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            devices = int(row["num_gpu"]) * int(row["gpu_milli"]) / 1000
            end_s = max(end_s, float(row["deletion_time"]))
            if devices:
                interval = float(row["creation_time"]), float(row["deletion_time"]), devices
                kinds["openb all"].append(interval)
                kinds.setdefault(f"openb {row['qos']}", []).append(interval)
                if devices <= 1:
                    kinds["openb shares" if devices < 1 else "openb whole devices"].append(interval)
    end_hour_s = int(end_s) // HOUR_S * HOUR_S
    return {name: hourly(found, OPENB_FROM_DAY * DAY_S, end_hour_s) for name, found in kinds.items()}


def dlrm(folder: Path) -> dict[str, Floats]:
    """One series of 31 days; what was there before or after them has no times."""
    end_s = DLRM_DAYS * DAY_S
    with gzip.open(folder / "disaggregated_DLRM_trace.csv.gz", "rt", newline="") as file:
        found = [
            (float(row["creation_time"] or 0), float(row["deletion_time"] or end_s), 1.0)
            for row in csv.DictReader(file)
            if row["role"] == "HN"
        ]
    return {"DLRM": hourly(found, 0, end_s)}


def philly(folder: Path) -> dict[str, Floats]:
    """Five series of seven weeks and more, up to the last submission."""
    kinds: dict[str, list[Interval]] = {"Philly 103959": []}
    with (folder / "elasticflow_philly_103959.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            submit_s = float(row["submit_time"])
            kinds["Philly 103959"].append((submit_s, submit_s + float(row["duration"]), int(row["num_gpu"])))
    for job in read_jobs(folder):
        cluster = job.tenant.removeprefix("vc-")
        if cluster in CLUSTERS:
            interval = job.submit_ms / 1000, (job.submit_ms + job.duration_ms) / 1000, job.devices
            kinds.setdefault(f"Philly {cluster}", []).append(interval)
    return {
        name: hourly(found, 0, int(max(begin for begin, _, _ in found)) // HOUR_S * HOUR_S)
        for name, found in kinds.items()
    }
