"""Several processes of a relay on one port: starts them, starts them again when they end, and ends them.

The kernel spreads connections over all that listen on the port with SO_REUSEPORT. This process binds
the port without listening, so that all get the same one even where any will do. They end when it ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.common.backoff import Backoff
from aliquot.common.errors import ConfigError
from aliquot.relay.config import Settings

log = logging.getLogger(__name__)

_READY = b"ready "
_KILL_AFTER_S = 10.0
"""Over the time that agents have to leave."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A process that listens."""

    pid: int
    metrics: str


class Supervisor:
    """`start`, then `run` until `stop`."""

    def __init__(self, settings: Settings, argv: Sequence[str]) -> None:
        self._settings = settings
        self._argv = list(argv)
        self._held: socket.socket | None = None
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self.address = ""

    async def start(self) -> list[Ready]:
        """All of them, listening. Raises ConfigError where one does not come up."""
        self._hold()
        return list(await asyncio.gather(*(self._spawn(number) for number in range(self._settings.processes))))

    async def run(self) -> None:
        """Keep them running until `stop`; then until all have ended."""
        keeping = [asyncio.create_task(self._keep(number)) for number in self._processes]
        await self._stopping.wait()
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        try:
            async with asyncio.timeout(self._settings.drain / 1000 + _KILL_AFTER_S):
                await asyncio.gather(*keeping)
        except TimeoutError:
            for process in self._processes.values():
                if process.returncode is None:
                    process.kill()
            await asyncio.gather(*keeping, return_exceptions=True)
        if self._held is not None:
            self._held.close()

    def stop(self) -> None:
        """End all of them in order."""
        self._stopping.set()

    def _hold(self) -> None:
        host, _, port = self._settings.listen.rpartition(":")
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._held = socket.socket(family, kind, protocol)
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._held.bind(address)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"can't listen on {self._settings.listen}: {error}", hint="choose another --listen host:port"
            ) from error
        self.address = f"{host}:{self._held.getsockname()[1]}"

    async def _spawn(self, number: int) -> Ready:
        command = [sys.executable, "-m", "aliquot.relay", *self._argv]
        command += ["--listen", self.address, "--worker", str(number)]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._processes[number] = process
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line.startswith(_READY):
            raise ConfigError(
                f"process {number} of the relay ended with {await process.wait()}", hint="it has said why above"
            )
        ready = json.loads(line.removeprefix(_READY))
        return Ready(process.pid, ready["metrics"])

    async def _keep(self, number: int) -> None:
        backoff = Backoff()
        while True:
            code = await self._processes[number].wait()
            if self._stopping.is_set():
                return
            log.error("process %d of the relay ended with %d; it is started again", number, code)
            await asyncio.sleep(backoff.next_s())
            if self._stopping.is_set():
                return
            try:
                await self._spawn(number)
                backoff.succeeded()
            except ConfigError as error:
                log.error("%s", error)  # noqa: TRY400 - what it says is enough
