"""SIGHUP to a real process: what can change changes, the rest is named, and nonsense changes nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import grpc.aio

from aliquot.v1 import pool_pb2, pool_pb2_grpc
from tests.coordinator.process import Running, start


async def said(running: Running, words: str) -> str:
    """The line of its log with these words."""
    assert running.process.stderr is not None
    async with asyncio.timeout(30):
        while True:
            line = (await running.process.stderr.readline()).decode()
            assert line, f"it never said {words!r}"
            if words in line:
                return line


async def test_settings_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    begin = f'[coordinator]\njournal = "sqlite:{tmp_path / "j.db"}"\nlisten = "127.0.0.1:0"\nmetrics_port = -1\n'
    file.write_text(begin + 'log_level = "error"\n')
    running = await start("--config", str(file))
    assert isinstance(running, Running), running
    try:
        file.write_text(begin + 'log_level = "debug"\nlog_json = true\nsnapshot_every_facts = 77\n')
        running.process.send_signal(signal.SIGHUP)
        line = await said(running, "wait for the next start")
        assert line.startswith("{"), "it logs as it was told to"
        assert "snapshot_every_facts" in line
        assert "journal" not in line
        file.write_text("[coordinator]\nlog_level = 7\n")
        running.process.send_signal(signal.SIGHUP)
        assert "log_level" in await said(running, "settings stay as they are")
        async with grpc.aio.insecure_channel(running.address) as channel:
            assert (await pool_pb2_grpc.PoolServiceStub(channel).GetStatus(pool_pb2.GetStatusRequest())).granting
    finally:
        running.process.terminate()
        ended = await running.end()
    assert ended.code == 0
