"""Replaying a public trace through the real API: its nodes are declared (no agents), its pods ask for leases.

openb (Alibaba, cluster-trace-gpu-v2023): pods arrive in the order of their creation, in batches; pods that the trace
deletes before a batch are released first. Nothing waits: what does not fit when it arrives is refused. CPU-only pods
are only counted. The trace states no device memory and some of its models are anonymous: those are declared with 32Gi,
which changes nothing, because pods ask only for shares.
"""

from __future__ import annotations

import csv
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from aliquot.cli._nodefile import read_nodes
from aliquot.client import Lease, NoCapacity, NodeDeclaration, Pool, PoolError, Request
from aliquot.common import catalog
from aliquot.common.errors import ConfigError
from aliquot.common.limits import GIB, MAX_BATCH_ITEMS, MIB, WHOLE_SHARE_MILLI
from aliquot.common.quantity import format_milli

POOL = "openb"
NODES_FILE = Path("openb", "openb_node_list_gpu_node.csv")
PODS_FILE = Path("openb", "openb_pod_list_default.csv")
PODS = 2000
ANONYMOUS_MEMORY_BYTES = 32 * GIB


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the trace."""

    name: str
    created_s: int
    deleted_s: int
    request: Request | None
    """None: it wants no GPU."""


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    nodes: int = 0
    devices: int = 0
    pods: int = 0
    cpu_only: int = 0
    granted: int = 0
    refused: int = 0
    released: int = 0
    declare_s: float = 0.0
    replay_s: float = 0.0
    leased_share_milli: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def live(self) -> int:
        """Leases that must exist at the end."""
        return self.granted - self.released

    @property
    def calls_per_s(self) -> float:
        """Allocations and releases per second."""
        return round((self.granted + self.refused + self.released) / self.replay_s, 1) if self.replay_s else 0.0


def run(pool: Pool, traces: Path, advance: Callable[[int], None], *, pods_max: int = PODS) -> Replay:
    """Declare the nodes and replay the pods; `advance` is told how many pods were done.

    Raises `ConfigError` when the trace can't be read.
    """
    result = Replay()
    started = time.monotonic()
    declarations = [_with_memory(node) for node in read_nodes(traces / NODES_FILE, agentless=True, pool=POOL)]
    pool.declare(declarations)
    result.nodes = len(declarations)
    result.devices = sum(len(node.devices) for node in declarations)
    result.declare_s = round(time.monotonic() - started, 3)
    pods = read_pods(traces / PODS_FILE, pods_max)
    started = time.monotonic()
    _replay(pool, pods, result, advance)
    result.replay_s = round(time.monotonic() - started, 3)
    result.leased_share_milli = sum(totals.leased_share_milli for totals in pool.status().pools if totals.pool == POOL)
    return result


def _with_memory(node: NodeDeclaration) -> NodeDeclaration:
    return replace(
        node,
        devices=[
            device
            if catalog.memory_total_bytes(catalog.canonical_name(device.model))
            else replace(device, memory_bytes=ANONYMOUS_MEMORY_BYTES)
            for device in node.devices
        ],
    )


def _replay(pool: Pool, pods: list[Pod], result: Replay, advance: Callable[[int], None]) -> None:
    endings: list[tuple[int, str]] = []
    for start in range(0, len(pods), MAX_BATCH_ITEMS):
        window = pods[start : start + MAX_BATCH_ITEMS]
        due = []
        while endings and endings[0][0] <= window[0].created_s:
            due.append(heapq.heappop(endings)[1])
        pool.release_batch(due)
        result.released += len(due)
        asked = [(pod, pod.request) for pod in window if pod.request is not None]
        outcomes = pool.allocate_batch([request for _, request in asked])
        for (pod, _), outcome in zip(asked, outcomes, strict=True):
            _count(pod, outcome, result, endings)
        result.pods += len(window)
        result.cpu_only += len(window) - len(asked)
        advance(len(window))


def _count(pod: Pod, outcome: Lease | PoolError, result: Replay, endings: list[tuple[int, str]]) -> None:
    if isinstance(outcome, Lease):
        result.granted += 1
        heapq.heappush(endings, (pod.deleted_s, outcome.lease_id))
    elif isinstance(outcome, NoCapacity):
        result.refused += 1
    else:
        result.errors.append(f"{pod.name}: {outcome.message}")


def read_pods(path: Path, pods_max: int) -> list[Pod]:
    """The first pods of the trace, in the order of their creation. Raises `ConfigError`."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            pods = [_pod(row) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(
            f"{path} is not a pod list of openb: {error}", hint="ALIQUOT_TRACES names the folder"
        ) from error
    pods.sort(key=lambda pod: pod.created_s)
    return pods[:pods_max]


def _pod(row: dict[str, str]) -> Pod:
    count, share_milli = int(row["num_gpu"]), int(row["gpu_milli"])
    request = None
    if count:
        part = str(count) if share_milli == WHOLE_SHARE_MILLI else format_milli(share_milli)
        models = f"({row['gpu_spec']})" if row["gpu_spec"] else ""
        request = Request(
            gpu=part + models,
            tenant=row["qos"].lower(),
            pool=POOL,
            name=row["name"],
            cpu_milli=int(row["cpu_milli"]),
            host_memory_bytes=int(row["memory_mib"]) * MIB,
            no_queue=True,
            detached=True,
        )
    return Pod(row["name"], int(row["creation_time"]), int(row["deletion_time"]), request)
