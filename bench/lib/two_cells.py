"""Two real cells behind a real door: leases through it, one lent where home is full, and one cell killed and back.

A cell is an ordinary pool: a coordinator with its own journal, and agents that know it alone. The door is nginx where
it is installed, which passes calls on by the name that they are for; without it callers know both addresses. Which cell
is a tenant's home, and that another is asked where it has no room, is the caller's: `Door`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc.aio

from aliquot.v1 import leases_pb2, leases_pb2_grpc, types_pb2
from bench.lib.pool import Agents, Process, coordinator, percentile, restarted
from tests.identity import insecure_channel

_NODES, _DEVICES = 4, 8
_LEASES = 200
_CELLS = ("a", "b")


class Door:
    """Where a tenant's calls go: home first and, where that has no room or does not answer, the other."""

    def __init__(self, addresses: dict[str, str], nginx: str) -> None:
        self.lent = 0
        self._channels = {
            name: insecure_channel(nginx or address, (("grpc.default_authority", f"{name}.cells"),))
            for name, address in addresses.items()
        }
        self._stubs = {name: leases_pb2_grpc.LeaseServiceStub(channel) for name, channel in self._channels.items()}

    async def close(self) -> None:
        """Of all cells."""
        for channel in self._channels.values():
            await channel.close()

    async def allocate(self, home: str, gpu: str = "0.05,1Gi") -> tuple[str, types_pb2.Lease]:
        """A lease, and the cell that it is in. Raises AioRpcError where no cell has room."""
        request = leases_pb2.AllocateRequest(
            request=types_pb2.LeaseRequest(gpu=gpu, tenant=f"team-{home}", detached=True, no_queue=True)
        )
        away = next(name for name in _CELLS if name != home)
        try:
            return home, (await self._stubs[home].Allocate(request, timeout=10)).lease
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE):
                raise
        lease = (await self._stubs[away].Allocate(request, timeout=10)).lease
        self.lent += 1
        return away, lease

    async def release(self, cell: str, lease_id: str) -> None:
        """Give it back to the cell that it is in."""
        await self._stubs[cell].Release(leases_pb2.ReleaseRequest(lease_id=lease_id), timeout=10)

    async def living(self, cell: str) -> int:
        """Leases that this cell lists."""
        page = await self._stubs[cell].List(leases_pb2.ListRequest(page_size=1_000), timeout=10)
        return len(page.leases)


async def try_out() -> dict[str, Any]:
    """What happened, in figures."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        flags = {cell: ("--journal", f"sqlite:{folder}/{cell}.db", "--log-level", "error") for cell in _CELLS}
        cells = {cell: stack.enter_context(coordinator(*flags[cell])) for cell in _CELLS}
        agents = [await Agents.start(cells[cell].address, _NODES, "--devices", str(_DEVICES)) for cell in _CELLS]
        addresses = {cell: process.address for cell, process in cells.items()}
        nginx = stack.enter_context(_nginx(folder, addresses))
        door = Door(addresses, nginx)
        direct = Door(addresses, "")
        found: dict[str, Any] = {"door": "nginx" if nginx else "callers alone"}
        by_door, directly = await _takes_ms(door), await _takes_ms(direct)
        found["door_p50_ratio"] = round(percentile(by_door, 0.5) / percentile(directly, 0.5), 2)
        found |= await _lends(door)
        found |= await _loses_one(door, cells, flags, stack)
        for channel in (door, direct):
            await channel.close()
        for several in agents:
            await several.stop()
        return found


async def _takes_ms(door: Door) -> list[float]:
    took = []
    for number in range(_LEASES):
        began_s = time.perf_counter()
        cell, lease = await door.allocate(_CELLS[number % 2])
        took.append((time.perf_counter() - began_s) * 1e3)
        await door.release(cell, lease.lease_id)
    return sorted(took)


async def _lends(door: Door) -> dict[str, Any]:
    """All of one cell is taken, and then one more."""
    held = [await door.allocate("a", "1") for _ in range(_NODES * _DEVICES)]
    assert {cell for cell, _ in held} == {"a"}
    lent_before = door.lent
    cell, lease = await door.allocate("a", "1")
    for where, each in (*held, (cell, lease)):
        await door.release(where, each.lease_id)
    return {"full_home_lent_to": cell, "full_home_lent": door.lent - lent_before}


async def _loses_one(
    door: Door, cells: dict[str, Process], flags: Mapping[str, tuple[str, ...]], stack: contextlib.ExitStack
) -> dict[str, Any]:
    kept = [await door.allocate("a") for _ in range(10)]
    cells["a"].kill()
    own = [(await door.allocate("b"))[0] for _ in range(_LEASES)]
    lent = [(await door.allocate("a"))[0] for _ in range(10)]
    began_s = time.monotonic()
    stack.enter_context(restarted(cells["a"].address, flags["a"]))
    there = 0
    while there < len(kept) and time.monotonic() < began_s + 30:
        with contextlib.suppress(grpc.aio.AioRpcError):
            there = await door.living("a")
    return {
        "other_cell_served": own.count("b") / len(own),
        "lost_cell_lent": lent.count("b") / len(lent),
        "lost_cell_back_s": round(time.monotonic() - began_s, 2),
        "leases_kept": there / len(kept),
    }


@contextlib.contextmanager
def _nginx(folder: Path, addresses: dict[str, str]) -> Iterator[str]:
    """Its address; empty where it is not installed."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        yield ""
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    servers = "\n".join(
        f"server {{ listen 127.0.0.1:{port} http2; server_name {name}.cells;"
        f" location / {{ grpc_pass grpc://{address}; grpc_read_timeout 1h; grpc_send_timeout 1h; }} }}"
        for name, address in addresses.items()
    )
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; worker_processes 1;"
        f" {'user root;' if os.geteuid() == 0 else ''} events {{}}\n"
        f"http {{ access_log off; {temporary}\n{servers} }}\n"
    )
    process = subprocess.Popen([program, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
                break
            time.sleep(0.01)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
