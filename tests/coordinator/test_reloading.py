"""SIGHUP to real processes: what can change changes, the rest is named, and nonsense changes nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import grpc.aio
import pytest

from aliquot.agent import settings as of_agents
from aliquot.common.reloading import leaves
from aliquot.coordinator.settings import config as of_coordinators
from aliquot.coordinator.settings.config import Settings
from aliquot.v1 import leases_pb2_grpc, pool_pb2, pool_pb2_grpc
from tests.coordinator.pool import allocation, declared, reason_of
from tests.coordinator.process import Running, start
from tests.identity import insecure_channel

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


async def said(process: asyncio.subprocess.Process, words: str) -> str:
    """The line of its log with these words."""
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while True:
            line = (await process.stderr.readline()).decode()
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
        line = await said(running.process, "wait for the next start")
        assert line.startswith("{"), "it logs as it was told to"
        assert "snapshot_every_facts" in line
        assert "journal" not in line
        file.write_text("[coordinator]\nlog_level = 7\n")
        running.process.send_signal(signal.SIGHUP)
        assert "log_level" in await said(running.process, "settings fails: they stay as they are")
        async with insecure_channel(running.address) as channel:
            pool = pool_pb2_grpc.PoolServiceStub(channel)
            assert (await pool.GetStatus(pool_pb2.GetStatusRequest())).granting
            (condition,) = (await pool.GetHealth(pool_pb2.GetHealthRequest())).conditions
            assert condition.subject == "settings", "the next start would end at them"
            assert "log_level" in condition.text
            file.write_text(begin)
            running.process.send_signal(signal.SIGHUP)
            await said(running.process, "settings is done again")
            assert not (await pool.GetHealth(pool_pb2.GetHealthRequest())).conditions
    finally:
        running.process.terminate()
        ended = await running.end()
    assert ended.code == 0


async def test_a_bound_that_is_raised_holds_at_once(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    begin = '[coordinator]\njournal = "memory:"\nlisten = "127.0.0.1:0"\nmetrics_port = -1\n'
    file.write_text(begin + "[coordinator.limits]\nrequests_queued_max = 1\n")
    running = await start("--config", str(file))
    assert isinstance(running, Running), running
    try:
        async with insecure_channel(running.address) as channel:
            leases = leases_pb2_grpc.LeaseServiceStub(channel)
            nodes = [declared("n")]
            await pool_pb2_grpc.PoolServiceStub(channel).DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=nodes))
            for _ in range(2):
                await leases.Allocate(allocation(detached=True, wait_timeout_ms=1))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await leases.Allocate(allocation(detached=True, wait_timeout_ms=1))
            assert reason_of(refused.value) == "QUEUE_FULL"
            file.write_text(
                begin + "[coordinator.limits]\nrequests_queued_max = 2\n[coordinator.elastic]\nidle = '1s'\n"
            )
            running.process.send_signal(signal.SIGHUP)
            line = await said(running.process, "these hold now")
            assert "limits.requests_queued_max, elastic.idle" in line
            assert (await leases.Allocate(allocation(detached=True, wait_timeout_ms=1))).lease.lease_id
    finally:
        running.process.terminate()
        ended = await running.end()
    assert ended.code == 0


async def test_an_agent_reads_its_settings_again_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    file.write_text("[agent]\nmetrics_port = -1\n")
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aliquot.agent", "--config", str(file)),
        *("--state-dir", str(tmp_path / "state"), "--socket", str(tmp_path / "sock")),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
    )
    try:
        await said(agent, "no driver yet")
        file.write_text('[agent]\nmetrics_port = -1\nlog_json = true\npool = "night"\n')
        agent.send_signal(signal.SIGHUP)
        line = await said(agent, "wait for the next start")
        assert line.startswith("{")
        assert line.rstrip().endswith('pool"}')
        file.write_text("[agent]\nlog_level = 7\n")
        agent.send_signal(signal.SIGHUP)
        await said(agent, "settings fails: they stay as they are")
    finally:
        agent.terminate()
        _, rest = await agent.communicate()
    assert agent.returncode == 0, rest


def test_the_manual_lists_what_can_be_reloaded() -> None:
    text = OPERATIONS.read_text()
    section = text.split("These take effect at once:")[1]
    table, _, after = section.partition("\n\nThe log names")
    listed = re.findall(r"`([a-z_.]+)`", "\n".join(line.split("|")[1] for line in table.strip().splitlines()[2:]))
    assert sorted(listed) == sorted(of_coordinators.LIVE)
    known = {name for name, _ in leaves(Settings())}
    assert known >= of_coordinators.LIVE, "a setting that nobody has"
    agents = re.search(r"An agent does the same on SIGHUP, with ([^.]*) only", after)
    assert agents is not None
    assert set(re.findall(r"`([a-z_.]+)`", agents.group(1))) == of_agents.LIVE
