"""A TCP proxy that delays what goes through it in both directions: distance, without the equipment."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque

RETRANSMIT_S = 0.2
"""Linux's shortest time before something is sent again."""
_CHUNK = 256 << 10
_UNDER_WAY_MAX = 256


class DelayingProxy:
    """Forwards from a free port of the loopback to another, `delay_s` later. `cut` breaks every connection.

    `lost`: how much is lost on the way, from 0 to 1. TCP sends that again, so that it comes later, and all behind it.
    """

    def __init__(self, port: int, delay_s: float, *, lost: float = 0.0) -> None:
        self._target = port
        self._delay_s = delay_s
        self._lost = lost
        self._dice = random.Random(1)  # the same losses in each run
        self._writers: set[asyncio.StreamWriter] = set()
        self._hung: set[asyncio.StreamWriter] = set()
        self._dead = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def cut(self) -> None:
        """Break every connection that there is, in the middle of whatever goes over it."""

        def abort() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    def hang(self, *, for_good: bool = False) -> None:
        """Forward nothing more over the connections that there are, `for_good` nor over any other. All stay open."""
        self._hung |= self._writers
        self._dead = for_good

    def close(self) -> None:
        """Forward nothing more."""

        async def end() -> None:
            self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _again_s(self) -> float:
        return RETRANSMIT_S + 2 * self._delay_s if self._dice.random() < self._lost else 0.0

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        if self._dead:
            self._hung |= {writer, far_writer}
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        except asyncio.CancelledError:
            return  # by `close`; asyncio would tell of it as of a defect
        finally:
            self._writers -= {writer, far_writer}
            writer.transport.abort()
            far_writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        waiting: deque[tuple[float, bytes]] = deque()
        changed = asyncio.Condition()

        async def forward() -> None:
            while True:
                async with changed:
                    await changed.wait_for(lambda: bool(waiting))
                    due_s, data = waiting.popleft()
                    changed.notify_all()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                if not data:
                    writer.transport.close()
                    return
                writer.write(data)
                await writer.drain()

        forwarding = asyncio.create_task(forward())
        try:
            data = b"-"
            while data:
                try:
                    data = await reader.read(_CHUNK)
                except OSError:
                    data = b""
                async with changed:
                    await changed.wait_for(lambda: len(waiting) < _UNDER_WAY_MAX)
                    if writer not in self._hung:
                        waiting.append((loop.time() + self._delay_s + self._again_s(), data))
                    changed.notify_all()
            await forwarding
        except (OSError, ConnectionError):
            writer.transport.abort()
        finally:
            forwarding.cancel()
