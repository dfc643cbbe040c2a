"""The coordinator that is attacked: in a process of its own, with an eye on what it logs and holds."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from pathlib import Path

from tests.coordinator.process import Running, start

STOPS_WITHIN_S = 60.0
RSS_GROWTH_MAX_BYTES = 256 << 20
"""Caches, books of leases that ended and the allocator's own reserve: the same after two minutes and after hours."""
_PAGE_BYTES = 4096
_SIGNS = ("Traceback", " ERROR ", "SET ASIDE", '"level":"error"', '"level": "error"', "CRITICAL")
_AFTER_A_SIGN = 40
"""Lines that belong to it, as those of a traceback."""
_FINDINGS_MAX = 20
_TAIL_LINES = 300


class Victim:
    """See the module's docstring. Made by `begin`."""

    def __init__(self, running: Running) -> None:
        self.address = running.address
        self.findings: list[str] = []
        self.grew_bytes = 0
        """Since `settled`, when looked at last."""
        self._process = running.process
        self._settled_bytes = 0
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._belongs = 0
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def begin(cls) -> Victim:
        """Start it."""
        # Attacks that an administrator's token lets through declare tenants; bystanders ask for one that nobody did.
        lenient = {"ALIQUOT_COORDINATOR_LIMITS_STRICT_TENANTS": "false"}
        running = await start("--listen", "127.0.0.1:0", "--metrics-port", "0", "--journal", "memory:", env=lenient)
        assert isinstance(running, Running), running
        return cls(running)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def settled(self) -> None:
        """What it holds now is what it needs by itself."""
        self._settled_bytes = self._rss_bytes()

    def judge(self) -> None:
        """Whether it is still there, and what it holds. To be asked while it should run."""
        if not self.alive:
            self.findings.append(f"the coordinator ended with {self._process.returncode}")
            return
        self.grew_bytes = self._rss_bytes() - self._settled_bytes
        if self.grew_bytes > RSS_GROWTH_MAX_BYTES:
            self.findings.append(f"it holds {self.grew_bytes} bytes more than before")

    async def stop(self) -> None:
        """SIGTERM, which it must obey; ends it in any case."""
        if self.alive:
            self._process.terminate()
        try:
            async with asyncio.timeout(STOPS_WITHIN_S):
                await asyncio.gather(self._listening, self._process.wait())
        except TimeoutError:
            self.findings.append(f"the coordinator did not stop within {STOPS_WITHIN_S:g} s")
            self._process.kill()
            await self._process.wait()
        if self.findings:
            sys.stderr.writelines(self._tail)

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            line = raw.decode(errors="replace")
            self._tail.append(line)
            if any(sign in line for sign in _SIGNS) and not self._belongs:
                self._belongs = _AFTER_A_SIGN
                self.findings.append(f"logged: {line.rstrip()[:1000]}")
            elif self._belongs:
                self._belongs -= 1
                if len(self.findings) <= _FINDINGS_MAX:
                    self.findings[-1] += f"\n{line.rstrip()[:1000]}"

    def _rss_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE_BYTES
