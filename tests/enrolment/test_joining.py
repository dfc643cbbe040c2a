"""Invites let in the node that they are for, once and in time; and `aliquot-agent join` does the rest."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from aliquot.agent import node_certificate, node_key
from aliquot.agent.disk.checkpoint import Checkpoint, StateDirError
from aliquot.agent.disk.membership import read_membership
from aliquot.agent.disk.private import require_private_state
from aliquot.common.connection_string import ConnectionString
from aliquot.common.errors import SecurityError
from aliquot.common.tokens import bearer, make_invite
from aliquot.coordinator.writing.journal.memory import MemoryJournal
from aliquot.v1 import (
    access_pb2,
    access_pb2_grpc,
    agent_pb2,
    agent_pb2_grpc,
    enrolment_pb2,
    enrolment_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
)
from tests.agent.conftest import node
from tests.agent.harness import Node
from tests.coordinator.pool import Pool, agents, eventually, reason_of, running
from tests.enrolment.keyed import KeyedAgent, enrolment, invite, join, joined
from tests.identity import ADMIN_TOKEN
from tests.manual_clock import ManualClock

__all__ = ["node"]
KEY, OTHER_KEY = node_key.make_key(), node_key.make_key()
HOUR_MS = 3_600_000


async def refused(pool: Pool, token: str, node_id: str, key_pem: str, name: str = "") -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await join(pool, token, node_id, key_pem, name=name)
    return caught.value


async def test_an_invite_is_good_once_and_the_same_key_may_ask_again() -> None:
    async with running() as pool:
        token = await invite(pool, "n1")
        first = await join(pool, token, "n1", KEY)
        again = await join(pool, token, "n1", KEY)  # its answer was lost
        assert again.pool_id == first.pool_id
        error = await refused(pool, token, "n1", OTHER_KEY)
        assert reason_of(error) == "INVITE_USED"
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        assert reason_of(await refused(pool, token, "n2", KEY)) == "INVITE_USED"


async def test_an_invite_is_for_its_node_by_id_or_by_name() -> None:
    async with running() as pool:
        token = await invite(pool, "gpu-07")
        error = await refused(pool, token, "n-8", KEY, name="gpu-08")
        assert reason_of(error) == "INVITE_FOR_ANOTHER_NODE"
        assert "gpu-07" in (error.details() or "")
        await join(pool, token, "n-7", KEY, name="gpu-07")


async def test_a_name_does_not_take_the_id_of_a_node_that_is_called_otherwise() -> None:
    async with running() as pool:
        victim = await joined(pool, "n-8", name="gpu-08")
        async with agents(victim):
            token = await invite(pool, "gpu-07")
            assert reason_of(await refused(pool, token, "n-8", KEY, name="gpu-07")) == "INVITE_FOR_ANOTHER_NODE"
        # Nor of one that has joined and was never connected.
        await join(pool, await invite(pool, "gpu-09"), "n-9", OTHER_KEY, name="gpu-09")
        token = await invite(pool, "gpu-07")
        assert reason_of(await refused(pool, token, "n-9", KEY, name="gpu-07")) == "INVITE_FOR_ANOTHER_NODE"


async def test_a_late_invite_says_that_it_is_late_and_a_day_later_nothing() -> None:
    clock = ManualClock(1_800_000_000_000)
    async with running(clock=clock) as pool:
        token = await invite(pool, "n1", ttl_ms=HOUR_MS)
        clock.advance(HOUR_MS)
        error = await refused(pool, token, "n1", KEY)
        assert reason_of(error) == "INVITE_EXPIRED"
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED
        clock.advance(24 * HOUR_MS)
        await invite(pool, "n2")  # a command makes the writer look at its clock
        await eventually(lambda: len(pool.coordinator.view.books.invites) == 1, "it is forgotten")
        assert reason_of(await refused(pool, token, "n1", KEY)) == "INVITE_UNKNOWN"


async def test_an_invite_of_another_pool_or_a_wrong_one_is_refused() -> None:
    async with running() as pool:
        token = await invite(pool, "n1")
        wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
        _, foreign = make_invite(bytes(range(38)))
        for text in (wrong, foreign):
            assert reason_of(await refused(pool, text, "n1", KEY)) == "INVITE_UNKNOWN"
        await join(pool, token, "n1", KEY)


async def test_an_invite_opens_nothing_else() -> None:
    async with running() as pool:
        metadata = (bearer(await invite(pool, "n1")),)
        async with grpc.aio.insecure_channel(pool.address) as channel:
            calls = [
                access_pb2_grpc.AccessServiceStub(channel).WhoAmI(access_pb2.WhoAmIRequest(), metadata=metadata),
                access_pb2_grpc.AccessServiceStub(channel).IssueToken(
                    access_pb2.IssueTokenRequest(), metadata=metadata
                ),
                leases_pb2_grpc.LeaseServiceStub(channel).List(leases_pb2.ListRequest(), metadata=metadata),
                inviting(channel).InviteNode(enrolment_pb2.InviteNodeRequest(node="n2"), metadata=metadata),
            ]
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


def inviting(channel: grpc.aio.Channel) -> Any:
    return enrolment_pb2_grpc.EnrolmentServiceStub(channel)


async def test_a_token_of_a_person_does_not_join() -> None:
    async with running() as pool:
        assert (await refused(pool, ADMIN_TOKEN, "n1", KEY)).code() == grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("wrong", [b"", b"\x30\x00", b"x" * 100, b"x" * 20_000])
async def test_a_request_that_its_key_has_not_signed_is_refused(wrong: bytes) -> None:
    async with running() as pool:
        token = await invite(pool, "n1")
        signed = node_certificate.request(KEY, "n1")
        changed = signed[:-1] + bytes([signed[-1] ^ 1])
        for request in (wrong, changed):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await enrolment(pool).Join(
                    enrolment_pb2.JoinRequest(node_id="n1", request=request), metadata=(bearer(token),)
                )
            assert reason_of(caught.value) == "INVALID_FIELD"
        await join(pool, token, "n1", KEY)


async def test_what_was_begun_before_a_failover_goes_on_after_it() -> None:
    """The invite and the key are in the journal; the authority follows from its secret."""
    journal = MemoryJournal()
    async with running(journal=journal) as pool:
        token = await invite(pool, "n1")
        early = await joined(pool, "n2")
        before = await join(pool, await invite(pool, "n3"), "n3", OTHER_KEY)
    async with running(journal=journal) as pool:
        answer = await join(pool, token, "n1", KEY)
        assert answer.authorities_pem == before.authorities_pem
        assert answer.pool_id == before.pool_id
        late = [KeyedAgent(pool.address, "n1", key_pem=KEY), KeyedAgent(pool.address, "n2", key_pem=early.key_pem)]
        async with agents(*late):
            pass


async def test_who_invited_and_who_joined_is_on_record() -> None:
    async with running() as pool:
        await joined(pool, "n1")
        audited = await access_pb2_grpc.AccessServiceStub(pool.channel).ListAudit(access_pb2.ListAuditRequest())
        assert [(entry.action, entry.subject) for entry in audited.entries[:2]] == [
            ("Join", "n1"),
            ("InviteNode", "n1"),
        ]
        assert audited.entries[0].principal.startswith("invite:")
        assert pool.coordinator.view.books.enrolled["n1"].by == audited.entries[1].principal


# -- the program on the node


async def run_join(node: Node, string: str, *flags: str) -> tuple[int, str]:
    """`aliquot-agent join`, which reads the string from its input."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aliquot.agent", "join", "-", "--state-dir", str(node.state_dir), *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=node.base_environment(),
    )
    said, _ = await process.communicate(string.encode() + b"\n")
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_one_command_lets_a_node_join_and_its_agent_needs_no_more(node: Node) -> None:
    async with running() as pool:
        name = "gpu-07"
        token = await invite(pool, name)
        string = ConnectionString((pool.address,), token, node=name).encode()
        code, said = await run_join(node, string, "--node-name", name)
        assert (code, token in said) == (0, False), said
        member = read_membership(node.state_dir)
        assert member is not None
        assert "PRIVATE KEY" in member.key_pem
        for path in (*node.state_dir.glob("*.record"), node.state_dir):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        await asyncio.to_thread(node.start, "", "--node-name", name)
        ready = lambda: [each.state.name for each in pool.coordinator.view.nodes.values()] == ["READY"]  # noqa: E731
        await eventually(ready, "its agent is let in")
        assert list(pool.coordinator.view.nodes) == [member.node_id]

        # Again, with another invite and while the agent runs: another key, and the agent comes back with it.
        code, said = await run_join(node, string, "--node-name", name)
        assert code == 0, "the same invite and the same key"
        second = ConnectionString((pool.address,), await invite(pool, name), node=name).encode()
        code, said = await run_join(node, second, "--node-name", name)
        assert code == 0, said
        now = read_membership(node.state_dir)
        assert now is not None
        assert now.key_pem != member.key_pem

        def back() -> bool:
            session = pool.leading.roster.get(member.node_id)
            return session is not None and session.key_sha256 == node_key.fingerprint(now.key_pem)

        await eventually(back, "it is back with the new key")


async def test_a_string_that_does_not_fit_is_refused_with_what_to_do(node: Node) -> None:
    async with running() as pool:
        address = pool.address
        token = await invite(pool, "gpu-07")
        for string, says in (
            ("alq1.nonsense", "copy it whole"),
            (ConnectionString((address,), token).encode(), "for a person"),
            (ConnectionString((address,), token, node="gpu-07").encode(), "this invite is for gpu-07"),
            (ConnectionString((address,), make_invite(os.urandom(38))[1], node="x").encode(), "no such invite"),
        ):
            code, said = await run_join(node, string, "--node-name", "gpu-08")
            assert code != 0
            assert says in said
            assert "Traceback" not in said
            assert token not in said
        assert read_membership(node.state_dir) is None


async def test_state_that_others_could_change_is_refused_with_the_command_that_mends_it(node: Node) -> None:
    async with running() as pool:
        string = ConnectionString((pool.address,), await invite(pool, "gpu-07"), node="gpu-07").encode()
        code, said = await run_join(node, string, "--node-name", "gpu-07")
        assert code == 0, said
        record = node.state_dir / "pool.record"
        for path, mode in ((record, 0o640), (node.state_dir, 0o777)):
            good = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode)
            with pytest.raises(SecurityError) as caught:
                require_private_state(node.state_dir)
            assert str(path) in caught.value.hint
            process = await asyncio.create_subprocess_shell(caught.value.hint)
            assert await process.wait() == 0
            require_private_state(node.state_dir)
            path.chmod(good)


# -- an agent that is asked for a proof


class Asking(agent_pb2_grpc.AgentServiceServicer):
    """A coordinator of another pool, which would like a signature that it could use elsewhere."""

    def __init__(self) -> None:
        self.hellos: list[agent_pb2.Hello] = []
        self.proofs: list[agent_pb2.Proof] = []

    async def Session(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        message = await anext(request_iterator)
        self.hellos.append(message.hello)
        yield agent_pb2.CoordinatorMessage(challenge=agent_pb2.Challenge(nonce=bytes(32), pool_id="p-another"))
        async for message in request_iterator:
            self.proofs.append(message.proof)


async def test_an_agent_signs_for_its_own_pool_only(node: Node) -> None:
    async with running() as pool:
        string = ConnectionString((pool.address,), await invite(pool, "gpu-07"), node="gpu-07").encode()
        code, said = await run_join(node, string, "--node-name", "gpu-07")
        assert code == 0, said
    asking, server = Asking(), grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(asking, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await asyncio.to_thread(node.start, f"127.0.0.1:{port}")
    await eventually(lambda: "has joined" in node.log, "it says which pool it is of")
    assert len(asking.hellos[0].nonce) == 32
    assert asking.proofs == []
    await server.stop(None)


def test_what_is_everybodys_is_never_to_be_closed_to_them() -> None:
    with pytest.raises(SecurityError) as refused:
        require_private_state(Path("/tmp"))
    assert "chmod" not in refused.value.hint
    assert "name a folder in it" in refused.value.hint
    require_private_state(Path("/dev/null"))
    with pytest.raises(StateDirError) as unfit:
        Checkpoint.open(Path("/dev/null"), "boot")
    assert "give the agent a directory" in unfit.value.hint
