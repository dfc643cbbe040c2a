"""Relays that an administrator has invited: known by a token of their own, which is theirs alone, and for as long."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from pathlib import Path

import pytest

from aliquot.cli.main import main
from aliquot.relay.joining import RECORD, read_joined
from aliquot.v1 import access_pb2, access_pb2_grpc
from tests.access.people import Person, give
from tests.coordinator.pool import Pool, agents, eventually, running
from tests.enrolment.keyed import behind_relays, joined
from tests.identity import ADMIN_TOKEN
from tests.relay.relays import relaying


async def invited(pool: Pool, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    command = ("relay", "invite", name, "--coordinator", pool.address, "--json")
    assert await asyncio.to_thread(main, command) == 0
    return str(json.loads(capsys.readouterr().out)["join"])


async def run_join(folder: Path, string: str) -> tuple[int, str]:
    """`aliquot-relay join`, which reads the string from its input."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aliquot.relay", "join", "-", "--state-dir", str(folder)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(string.encode() + b"\n")
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_a_relay_joins_once_carries_agents_and_ends_with_its_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(behind_relays()) as pool:
        string = await invited(pool, "r1", capsys)
        code, said = await run_join(tmp_path / "r1", string)
        assert code == 0, said
        known = read_joined(tmp_path / "r1")
        assert known is not None
        assert known.token not in said + string
        assert stat.S_IMODE((tmp_path / "r1" / RECORD).stat().st_mode) == 0o600

        again, said = await run_join(tmp_path / "r2", string)
        assert again == 1
        assert "aliquot relay invite" in said
        assert read_joined(tmp_path / "r2") is None

        async with relaying("--state-dir", str(tmp_path / "r1")) as relay:
            # It listens before it has found the coordinator, and sends agents away until then.
            agent = await joined(pool, "n1", relay.address)
            await eventually(relay.connected, "the relay has connected")
            async with agents(agent):
                assert pool.leading.relays.streams == 1
                admin = access_pb2_grpc.AccessServiceStub(pool.channel)
                await admin.RevokeTokens(access_pb2.RevokeTokensRequest(principal="relay/r1"))
                await eventually(lambda: len(pool.leading.relays) == 0, "its stream has ended")
                await eventually(lambda: pool.leading.relays.streams == 0, "and those within")
            denials = pool.coordinator.metrics.denials.by_reason
            await eventually(lambda: denials["TOKEN_UNKNOWN"] > 0, "it comes again, and is refused")
            assert len(pool.leading.relays) == 0


async def test_a_token_of_another_role_carries_nobody(tmp_path: Path) -> None:
    async with running(behind_relays()) as pool:
        person = await give(Person("root", ADMIN_TOKEN, pool.channel), "ann", access_pb2.OPERATOR)
        file = tmp_path / "token"
        file.write_text(person.token)
        flags = ("--coordinator", pool.address, "--state-dir", str(tmp_path))
        async with relaying(*flags, "--token-file", str(file)):
            denials = pool.coordinator.metrics.denials.by_reason
            await eventually(lambda: denials["ROLE_MISSING"] > 0, "it is refused")
            assert len(pool.leading.relays) == 0


async def test_what_is_no_invite_and_what_others_could_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(behind_relays()) as pool:
        string = await invited(pool, "r1", capsys)
        assert (await run_join(tmp_path, string[:-9]))[0] == 1
        assert (await run_join(tmp_path, string))[0] == 0
        (tmp_path / RECORD).chmod(0o644)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aliquot.relay", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path)),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        assert process.returncode == 1
        assert "chmod 600" in said.decode()
