"""What one coordinator costs at several sizes, measured, and the lines that are fitted to that.

`measured` runs other benches of this folder in short modes, and declares pools of several sizes itself; `Costs` fits
what they read. `bench/history/cells.json` keeps one such run, so that the plan needs no measuring.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aliquot.v1 import pool_pb2, pool_pb2_grpc
from bench.lib.pool import Process, channel_to, coordinator, declare, declared_nodes

KEPT = Path(__file__).parents[1] / "history" / "cells.json"
NODE_DEVICES = 8
LIFE_S = 3_600.0
"""Mean life of a lease."""
LEASES_PER_DEVICE = 2.0
SCRAPE_EVERY_S = 15.0
CORES_MAX = 0.5
"""Of the one core that a coordinator's writer has: the rest is for bursts and for what people read."""
MEMORY_MB_MAX = 4_096
RECOVERY_S_MAX = 10.0
SCRAPE_S_MAX = 2.0
"""A collector gives up after ten seconds as it is set up everywhere; callers wait beside it."""


def measured(*, quick: bool) -> dict[str, Any]:
    """Run everything: minutes, or with `quick` the smallest sizes alone."""
    agents = (100, 200) if quick else (500, 2_500)
    leases = (1_000, 3_000) if quick else (10_000, 40_000)
    sizes = (1_000, 4_000) if quick else (10_000, 100_000, 300_000)
    return {
        "cores": os.cpu_count(),
        "decide": _bench("decide.py", "--devices", ",".join(map(str, sizes[:2])), "--decisions", "300", "--scans", "3"),
        "allocate": _bench("allocate.py", "--seconds", "2" if quick else "5"),
        "agents": [_bench("agents.py", "--agents", str(count), "--seconds", "8") for count in agents],
        "recover": [_bench("recover.py", "--leases", str(count)) for count in leases],
        "declared": [asyncio.run(_declared(devices)) for devices in sizes],
    }


def _bench(script: str, *arguments: str) -> dict[str, Any]:
    print(script, *arguments, file=sys.stderr, flush=True)
    path = Path(__file__).parents[1] / script
    ran = subprocess.run(
        [sys.executable, str(path), *arguments, "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return result


async def _declared(devices: int) -> dict[str, Any]:
    """A coordinator that knows so many devices, without agents: its memory, and what reading all of them costs."""
    print("declared", devices, file=sys.stderr, flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        coordinator("--journal", f"sqlite:{folder}/declared.db", "--log-level", "error") as process,
    ):
        empty_mb, began_s = process.rss_mb(), time.monotonic()
        await declare(process.address, declared_nodes(devices // NODE_DEVICES, NODE_DEVICES))
        found: dict[str, Any] = {"devices": devices, "declaring_s": round(time.monotonic() - began_s, 1)}
        found |= {"empty_rss_mb": round(empty_mb), "rss_mb": round(process.rss_mb())}
        found |= await _read(process, "fleet", _fleet(process.address))
        return found | await _read(process, "scrape", asyncio.to_thread(_scrape, process.metrics))


async def _read(process: Process, name: str, reading: Awaitable[int]) -> dict[str, float]:
    cpu_s, began_s = process.cpu_s(), time.monotonic()
    size = await reading
    return {
        f"{name}_bytes": size,
        f"{name}_s": round(time.monotonic() - began_s, 3),
        f"{name}_cpu_s": round(process.cpu_s() - cpu_s, 3),
    }


async def _fleet(address: str) -> int:
    """Bytes of all devices in columns, as a page gets them that is opened."""
    size = 0
    async with channel_to(address) as channel:
        call = pool_pb2_grpc.PoolServiceStub(channel).WatchFleet(pool_pb2.WatchFleetRequest())
        async for event in call:
            size += event.ByteSize()
            if event.version:
                call.cancel()
                break
    return size


def _scrape(metrics: str) -> int:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=60) as answer:
        return len(answer.read())


class Line(NamedTuple):
    """y = at_zero + each · x."""

    at_zero: float
    each: float

    def at(self, x: float) -> float:
        """Never below nothing."""
        return max(0.0, self.at_zero + self.each * x)


def line(points: list[tuple[float, float]]) -> Line:
    """By least squares."""
    x, y = np.array(points, dtype=float).T
    each, at_zero = np.polyfit(x, y, 1)
    return Line(float(at_zero), float(each))


@dataclass(frozen=True, slots=True)
class Demand:
    """What one coordinator would take, and what there is of it."""

    what: str
    takes: float
    there_is: float

    @property
    def part(self) -> float:
        """1: all that there is."""
        return self.takes / self.there_is


class Costs:
    """Lines through what was measured."""

    def __init__(self, read: dict[str, Any]) -> None:
        self._session_cores = line([(one["agents"], one["cpu_cores"]) for one in read["agents"]])
        self._session_mb = line([(one["agents"], one["rss_mb"]) for one in read["agents"]])
        self._lease_mb = line([(one["leases"], one["rss_mb"]) for one in read["recover"]])
        self._recovery_s = line([(one["leases"], one["serving_s"]) for one in read["recover"]])
        self._device_mb = line([(one["devices"], one["rss_mb"]) for one in read["declared"]])
        self._scrape_s = line([(one["devices"], one["scrape_cpu_s"]) for one in read["declared"]])
        self._fleet_bytes = line([(one["devices"], one["fleet_bytes"]) for one in read["declared"]])
        sizes = [(int(size), found) for size, found in read["decide"].items() if size.isdigit()]
        # Of the middle one: the first of each kind of request scans the pool, which few of a real day's do.
        self._decide_us = line([(size, found["p50_us"]) for size, found in sizes])
        smallest = min(size for size, _ in sizes)
        self._lease_us = read["allocate"]["cpu_us_per_lease"] - self._decide_us.at(smallest)
        """Of everything but deciding, which alone grows with the pool."""

    def demands(self, devices: int) -> list[Demand]:
        """Of a pool of so many devices under one coordinator."""
        agents, leases = devices / NODE_DEVICES, devices * LEASES_PER_DEVICE
        leases_per_s = leases / LIFE_S
        memory_mb = (
            self._device_mb.at(devices) + self._session_mb.each * agents + self._lease_mb.each * leases
        )  # the first holds what an empty coordinator has
        return [
            Demand("heartbeats", self._session_cores.at(agents), CORES_MAX),
            Demand("leases", leases_per_s * (self._lease_us + self._decide_us.at(devices)) / 1e6, CORES_MAX),
            Demand("scrapes", self._scrape_s.at(devices) / SCRAPE_EVERY_S, CORES_MAX),
            Demand("one scrape", self._scrape_s.at(devices), SCRAPE_S_MAX),
            Demand("memory", memory_mb, MEMORY_MB_MAX),
            Demand("recovery", self._recovery_s.at(leases), RECOVERY_S_MAX),
        ]

    def largest(self) -> int:
        """Devices of the largest pool that one coordinator bears, in thousands."""
        return max(size for size in range(1_000, 1_001_000, 1_000) if all(d.part <= 1 for d in self.demands(size)))

    def fleet_mb(self, devices: int) -> float:
        """What a page gets that is opened."""
        return self._fleet_bytes.at(devices) / 1e6
