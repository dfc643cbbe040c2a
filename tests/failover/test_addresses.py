"""Whoever was let in by one of several coordinators knows them all, and finds the others when that one is gone."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aliquot.agent.disk.membership import read_membership
from aliquot.cli.main import main
from aliquot.client.credentials import CredentialsFile
from aliquot.client.local import ADMIN_SOCKET
from tests.agent.conftest import node
from tests.agent.harness import Node
from tests.coordinator.pool import eventually
from tests.enrolment.test_joining import run_join
from tests.failover.cluster import Cluster, Replica

__all__ = ["node"]
pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


@pytest.fixture
async def three(database: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    several = Cluster(database, 0)
    try:
        for name in "abc":
            settings = tmp_path / f"{name}.toml"
            settings.write_text(f'[coordinator.access]\ndir = "{tmp_path / name}"\n')
            several.replicas.append(Replica(database, "--log-level", "error", "--config", str(settings)))
        await asyncio.to_thread(several.start)
        yield several
    finally:
        await asyncio.to_thread(several.close)


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CredentialsFile:
    """Somebody who has logged in nowhere yet, and is nobody by their environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ALIQUOT_TOKEN")
    return CredentialsFile(tmp_path / "home" / "aliquot" / "credentials.json")


async def said(*arguments: str) -> str:
    """What a command writes, which must work."""

    def run() -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main(list(arguments)) == 0, arguments
        return out.getvalue()

    return await asyncio.to_thread(run)


async def test_who_was_invited_by_one_that_is_gone_comes_in_through_the_others(
    three: Cluster, person: CredentialsFile, node: Node, tmp_path: Path
) -> None:
    leader = await three.leader()
    socket = tmp_path / "abc"[three.replicas.index(leader)] / ADMIN_SOCKET
    await said("access", "bootstrap", "--socket", str(socket), "-c", ",".join(three.addresses))
    admin = person.current()
    assert admin is not None
    assert admin.addresses == tuple(three.addresses), "as they were named, one by one"
    invite = json.loads(await said("node", "invite", "gpu-07", "--json", "-c", leader.address))["join"]
    login = json.loads(await said("access", "token", "ann", "--role", "viewer", "--json", "-c", leader.address))[
        "login"
    ]
    leader.send(signal.SIGKILL)
    await asyncio.to_thread(leader.ended)
    left = [address for address in three.addresses if address != leader.address]

    code, told = await run_join(node, invite, "--node-name", "gpu-07")
    assert code == 0, told
    member = read_membership(node.state_dir)
    assert member is not None
    assert set(member.addresses) == set(three.addresses)

    await said("login", login)
    ann = person.current()
    assert ann is not None
    assert set(ann.addresses) == set(three.addresses)
    assert ann.pool == admin.pool != ""
    assert person.find(left) == ann, "kept once, for the pool"
    # Whichever of them leads, and by the address of the one that is gone: the others are tried after it.
    for address in three.addresses:
        assert json.loads(await said("whoami", "--json", "-c", address))["principal"] == "ann"


async def test_who_knew_one_coordinator_learns_of_the_others(
    three: Cluster, person: CredentialsFile, node: Node, tmp_path: Path
) -> None:
    leader = await three.leader()
    _, epoch, _ = three.row()
    socket = tmp_path / "abc"[three.replicas.index(leader)] / ADMIN_SOCKET
    await said("access", "bootstrap", "--socket", str(socket), "-c", leader.address)
    admin = person.current()
    assert admin is not None
    assert admin.addresses[0] == leader.address
    assert set(admin.addresses) == set(three.addresses)

    made = json.loads(await said("node", "invite", "gpu-07", "--json", "--address", leader.address))
    code, told = await run_join(node, made["join"], "--node-name", "gpu-07")
    assert code == 0, told
    member = read_membership(node.state_dir)
    assert member is not None
    assert member.addresses == (leader.address,)
    await asyncio.to_thread(node.start, "")

    def knows_all() -> bool:
        now = read_membership(node.state_dir)
        return now is not None and set(now.addresses) == set(three.addresses)

    await eventually(knows_all, "the agent keeps where all coordinators are")
    leader.send(signal.SIGKILL)
    await asyncio.to_thread(leader.ended)
    again = await three.leader(after_epoch=epoch)
    await eventually(lambda: node.ask_info().coordinator == again.address, "it finds the one that leads now")
