"""When a snapshot is taken, what is dropped after it, and what happens to the snapshotter when the coordinator ends."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from aliquot.common.duties import Duties
from aliquot.coordinator.writing.journal.compaction import Compaction
from aliquot.coordinator.writing.journal.snapshots import SnapshotFolder


class Compacting:
    """A compaction whose snapshots are pretended: each look sees the next number of durable facts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seqs: list[int], looks: list[int], codes: list[int]) -> None:
        self.seqs_now, self.pruned, self.started = seqs, list[int](), list[int]()
        self._looks, self._codes, self._seq = looks, codes, 0
        self.ended = asyncio.Event()
        monkeypatch.setattr(asyncio, "create_subprocess_exec", self._start)

    def seqs(self) -> list[int]:
        return self.seqs_now

    def _durable(self) -> int:
        if not self._looks:
            self.ended.set()
            return self._seq
        self._seq = self._looks.pop(0)
        return self._seq

    async def _start(self, *command: str, **pipes: object) -> Any:
        self.started.append(self._seq)
        code = self._codes.pop(0)

        class Process:
            returncode = code

            async def communicate(self, question: bytes) -> tuple[bytes, bytes]:
                return b"done", b"!" * 3000

        if not code:
            self.seqs_now = [self._seq, *self.seqs_now][:2]
        return Process()

    async def run(self, every_facts: int) -> None:
        compaction = Compaction(
            "j",
            self.seqs,
            every_facts=every_facts,
            durable_seq=self._durable,
            prune=self.pruned.append,
            look_every_s=0.001,
            tell=Duties().tell,
        )
        running = asyncio.create_task(compaction.run())
        ended = asyncio.create_task(self.ended.wait())
        await asyncio.wait({running, ended}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert self.ended.is_set()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_a_snapshot_is_taken_after_so_many_facts_and_what_the_one_before_holds_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compacting = Compacting(monkeypatch, [], [99, 100, 199, 200, 300], [0, 0, 0])
    await compacting.run(100)
    assert compacting.started == [100, 200, 300]
    assert compacting.pruned == [100, 200], "the first snapshot is the only one: nothing is dropped yet"


async def test_a_start_counts_from_the_newest_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    compacting = Compacting(monkeypatch, [150, 50], [200, 249, 250], [0])
    await compacting.run(100)
    assert (compacting.started, compacting.pruned) == ([250], [150])


async def test_after_a_failure_nothing_is_dropped_and_the_next_try_comes_as_late_as_after_a_success(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compacting = Compacting(monkeypatch, [50, 20], [150, 151, 249, 250], [-9, 0])
    await compacting.run(100)
    assert (compacting.started, compacting.pruned) == ([150, 250], [50])
    assert f": {'!' * 2000}" in caplog.text
    assert "!" * 2001 not in caplog.text


async def test_a_snapshotter_ends_with_its_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    started = asyncio.Event()

    class Process:
        returncode = None

        async def communicate(self, question: bytes) -> tuple[bytes, bytes]:
            started.set()
            await asyncio.Event().wait()
            return b"", b""

        def kill(self) -> None:
            did.append("kill")
            raise ProcessLookupError

        async def wait(self) -> None:
            did.append("wait")

    async def start(*command: str, **pipes: object) -> Any:
        return Process()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    folder = SnapshotFolder(Path("/nowhere"))
    compaction = Compaction(
        "j", folder.seqs, every_facts=1, durable_seq=lambda: 1, prune=lambda _: None, tell=Duties().tell, look_every_s=0
    )
    running = asyncio.create_task(compaction.run())
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert did == ["kill", "wait"]
