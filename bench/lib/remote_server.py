"""A process that serves a lease by aliquot's own transport, and channels to it from another process.

    python -m bench.lib.remote_server ENGINE MEMORY_BYTES [CORE]

It prints its endpoint, keeps to one core where that is named, and ends with its standard input.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aliquot.remote import RemoteChannel
from aliquot.remote.core.endpoint import Endpoint, parse
from aliquot.remote.server import engines
from aliquot.remote.server.certificate import make
from aliquot.remote.server.doorkeeper import Part
from aliquot.remote.server.listening import RemoteServer
from aliquot.remote.wire.client import open_channel
from tests.remote_serving.served import LEASE, opening

ROOT = Path(__file__).resolve().parents[2]
PART = "l-1.1.0"


class ServerProcess:
    """The process, from where it was started. `core`: the one it keeps to."""

    def __init__(self, engine: str = "torch", memory_bytes: int = 1 << 30, core: int | None = None) -> None:
        self._engine = engine
        command = [sys.executable, "-m", "bench.lib.remote_server", engine, str(memory_bytes)]
        self.process = subprocess.Popen(
            [*command, *([] if core is None else [str(core)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,  # by this bench, also where another checkout's product is measured
            # The processor stands for the device.
            env={**os.environ, "ALIQUOT_SIMGPU": os.environ.get("ALIQUOT_SIMGPU", "none")},
        )
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().strip()
        if not self.endpoint:
            raise RuntimeError("the server did not start")

    def channel(self) -> RemoteChannel:
        """A session."""
        return channel(self.endpoint, self._engine)

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def channel(endpoint: str, engine: str) -> RemoteChannel:
    """A session with the process at an endpoint."""
    return open_channel(parse(endpoint), opening(engine=engine))


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> None:
    """Serve."""
    if len(sys.argv) > 3:
        os.sched_setaffinity(0, {int(sys.argv[3])})
    part = Part(PART, 0, "GPU-1", int(sys.argv[2]), 250, LEASE.lease_id, LEASE.tenant)
    server = RemoteServer(replace(LEASE, parts={PART: part}), engines.make, "aliquot bench")
    own = make()
    print(Endpoint("127.0.0.1", server.start("127.0.0.1", 0, own), own.sha256), flush=True)
    sys.stdin.read()
    server.stop("STOPPED", "the measurement is over")


if __name__ == "__main__":
    main()
