"""How long a coordinator with many live leases takes to serve again after a kill -9.

    python bench/recover.py --leases 100000 --json

Fills a pool over real gRPC, hashes its books, kills the coordinator, starts it again on the same journal, and measures
the time from the start of the new process until a node that has registered again accepts a grant. The new process must
replay books with the same hash. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.v1 import leases_pb2, leases_pb2_grpc, pool_pb2, pool_pb2_grpc, types_pb2
from bench.lib.pool import Agents, coordinator, declare, declared_nodes, start_coordinator
from tests.identity import insecure_channel

_BATCH = 256
_GPU = "0.05(A100),3Gi"


async def fill(address: str, leases: int) -> None:
    """Allocate this many detached leases."""
    async with insecure_channel(address) as channel:
        stub = leases_pb2_grpc.LeaseServiceStub(channel)

        async def some(count: int) -> None:
            item = leases_pb2.AllocateRequest(
                request=types_pb2.LeaseRequest(gpu=_GPU, tenant="bench", detached=True, no_queue=True)
            )
            answer = await stub.AllocateBatch(leases_pb2.AllocateBatchRequest(items=[item] * count))
            assert all(result.WhichOneof("result") == "lease" for result in answer.results)

        batches = [_BATCH] * (leases // _BATCH) + [leases % _BATCH]
        for start in range(0, len(batches), 4):
            await asyncio.gather(*(some(count) for count in batches[start : start + 4] if count))


def state_hash(journal: Path) -> dict[str, Any]:
    """The hash of the books as another process replays them from the journal."""
    code = (
        "import json, sys, pathlib, time\n"
        "from aliquot.coordinator.core.evolve.snapshot import state_hash\n"
        "from aliquot.coordinator.writing.journal.replay import replay\n"
        "from aliquot.coordinator.writing.journal.sqlite import SqliteJournal\n"
        "began = time.monotonic()\n"
        "replayed = replay(SqliteJournal(pathlib.Path(sys.argv[1])))\n"
        "took_ms = int((time.monotonic() - began) * 1000)\n"
        "books = replayed.state\n"
        "print(json.dumps({'hash': state_hash(books), 'seq': books.seq, 'leases': len(books.leases),\n"
        "                  'facts': replayed.facts, 'replay_ms': took_ms}))\n"
    )
    output = subprocess.run([sys.executable, "-c", code, str(journal)], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(output.stdout)
    return result


async def accepts_grants(address: str) -> None:
    """One agent registers again, and a lease is granted on its node and confirmed."""
    agents = await Agents.start(address, 1, "--devices", "1")
    async with insecure_channel(address) as channel:
        stub = leases_pb2_grpc.LeaseServiceStub(channel)
        request = types_pb2.LeaseRequest(gpu="0.01,1Mi", tenant="bench", node_ids=["agent-00000"], detached=True)
        answer = await stub.Allocate(
            leases_pb2.AllocateRequest(request=request, wait_until=leases_pb2.WAIT_UNTIL_ACTIVE)
        )
        assert answer.lease.state == types_pb2.LEASE_STATE_ACTIVE
    await agents.stop()


async def leases_there(address: str) -> int:
    """How many live leases the coordinator reports."""
    async with insecure_channel(address) as channel:
        status = await pool_pb2_grpc.PoolServiceStub(channel).GetStatus(pool_pb2.GetStatusRequest())
        return int(status.leases)


async def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Fill, kill, start, compare."""
    journal = folder / "recover.db"
    flags = ["--journal", f"sqlite:{journal}", "--log-level", "error"]
    if not arguments.snapshots:
        flags += ["--snapshot-every-facts", str(10**9)]
    nodes = (arguments.leases + arguments.after_snapshot) // 160 + 2  # twenty leases a device, eight devices a node
    with coordinator(*flags) as process:
        await declare(process.address, declared_nodes(nodes, 8))
        await accepts_grants(process.address)
        await fill(process.address, arguments.leases)
        live_before = await leases_there(process.address)
        if arguments.snapshots:
            subprocess.run(  # noqa: ASYNC221 - nothing else goes on
                [sys.executable, "-m", "aliquot.coordinator.writing.journal.snapshotter", str(journal)], check=True
            )
            await fill(process.address, arguments.after_snapshot)
            live_before += arguments.after_snapshot
        process.kill()
    before = state_hash(journal)
    started = time.monotonic()
    restarted = start_coordinator(*flags)
    try:
        ready_s = time.monotonic() - started
        await accepts_grants(restarted.address)
        serving_s = time.monotonic() - started
        live_after = await leases_there(restarted.address)
        rss_mb = restarted.rss_mb()
    finally:
        restarted.popen.terminate()
        restarted.popen.wait()
    after = state_hash_at(journal, before["seq"])
    return {
        "leases": arguments.leases,
        "serving_s": round(serving_s, 2),
        "ready_s": round(ready_s, 2),
        "hash_before": before["hash"],
        "hash_after": after,
        "live_before": live_before,
        "live_after": live_after - 1,  # without the one that tested whether grants are accepted
        "facts_replayed": before["facts"],
        "replay_ms": before["replay_ms"],
        "rss_mb": round(rss_mb, 1),
        "journal_mb": round(journal.stat().st_size / (1 << 20), 1),
        "cores": os.cpu_count(),
    }


def state_hash_at(journal: Path, seq: int) -> str:
    """The hash of the books at this fact, replayed from the journal as the new process left it."""
    code = (
        "import sys, pathlib\n"
        "from aliquot.coordinator.core.evolve import evolve\n"
        "from aliquot.coordinator.core.evolve.snapshot import from_snapshot, state_hash\n"
        "from aliquot.coordinator.core.state import State\n"
        "from aliquot.coordinator.writing.journal.sqlite import SqliteJournal\n"
        "journal, seq = SqliteJournal(pathlib.Path(sys.argv[1])), int(sys.argv[2])\n"
        "stored = next(journal.snapshots(), None)\n"
        "state = State.fresh() if stored is None else from_snapshot(stored.snapshot)\n"
        "for read in journal.groups(state.seq):\n"
        "    if read.group.last_seq > seq: break\n"
        "    for fact in read.group.facts: evolve(state, fact)\n"
        "print(state_hash(state))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, str(journal), str(seq)], check=True, capture_output=True, text=True
    )
    return output.stdout.strip()


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--no-snapshots", dest="snapshots", action="store_false", help="replay every fact")
    parser.add_argument("--after-snapshot", type=int, default=2_000, help="leases that only the journal's tail holds")
    parser.add_argument("--folder", help="where the journal goes")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = asyncio.run(measure(arguments, Path(folder)))
    if not arguments.json:
        for key, value in result.items():
            print(f"{key:24} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
