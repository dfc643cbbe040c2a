"""Who is let in, and who no longer, while the lead goes from one coordinator to another."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from aliquot.agent.disk.membership import read_membership
from aliquot.client import AsyncPool, ClientTls, DeviceDeclaration, NodeDeclaration, NotLoggedIn, RetryPolicy, WaitUntil
from aliquot.client.access import IssuedToken, Role, RoleGrant
from aliquot.common.connection_string import ConnectionString
from aliquot.common.tls import fingerprints
from tests.agent.conftest import node
from tests.agent.harness import Node
from tests.coordinator.pool import eventually
from tests.enrolment.test_joining import run_join
from tests.failover.cluster import Cluster, Replica, cluster, free_address, granted_after, load
from tests.failover.streams import Held, until_open
from tests.logins.api_server import ApiServer, api_server

__all__ = ["node"]
pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

SOON = RetryPolicy(backoff_max_s=0.3)
ROUNDS = 2


def administrator(several: Cluster) -> AsyncPool:
    return AsyncPool(several.addresses, tenant="team", timeout_s=60.0, retry=SOON)


def as_somebody(several: Cluster, token: str) -> AsyncPool:
    return AsyncPool(several.addresses, token=token, tenant="team", timeout_s=60.0, retry=SOON)


async def issued(admin: AsyncPool, name: str) -> IssuedToken:
    return await admin.access.issue_token(name, grants=[RoleGrant(Role.USER, "team")])


async def killed(several: Cluster) -> None:
    """The leader, and there again as a standby."""
    old = await several.leader()
    old.send(signal.SIGKILL)
    await asyncio.to_thread(old.ended)
    old.start()
    await asyncio.to_thread(old.wait_until_ready)


async def holding(several: Cluster, token: str) -> list[Held]:
    """Watches and keep-alives of this token."""
    async with as_somebody(several, token) as pool:
        lease = await pool.allocate("0.05,1Gi", until=WaitUntil.GRANTED, detached=True)
    return [Held(several.addresses, token) for _ in range(3)] + [Held(several.addresses, token, lease.lease_id)]


async def declare(admin: AsyncPool) -> None:
    await admin.declare([NodeDeclaration("n", devices=[DeviceDeclaration("A100-80")] * 8, agentless=True)])


async def test_what_a_revoked_caller_holds_ends_on_every_coordinator_and_nobody_elses(database: str) -> None:
    async with cluster(database) as several, administrator(several) as admin, load(several.addresses, 4) as log:
        await declare(admin)
        ann, ben = await issued(admin, "ann"), await issued(admin, "ben")
        of_ann, of_ben = await holding(several, ann.token), await holding(several, ben.token)
        tasks = [asyncio.create_task(held.run()) for held in (*of_ann, *of_ben)]
        await granted_after(log, time.monotonic())
        await until_open([*of_ann, *of_ben])

        # Streams come back with a takeover as long as their token counts, and end with it at the new leader.
        await killed(several)
        moment = time.monotonic()
        await until_open([*of_ann, *of_ben], moment)
        await admin.access.revoke_tokens([ann.issued.token_id])
        await asyncio.gather(*tasks[: len(of_ann)])
        assert {held.refused for held in of_ann} == {"TOKEN_REVOKED"}

        # What was told to have ended stays so, whoever leads.
        await killed(several)
        moment = time.monotonic()
        await until_open(of_ben, moment)
        late = Held(several.addresses, ann.token)
        await late.run()
        assert late.refused == "TOKEN_UNKNOWN"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_revocation_in_the_midst_of_a_takeover_is_settled_by_asking_again(database: str) -> None:
    async with cluster(database) as several, administrator(several) as admin:
        await declare(admin)
        for number in range(ROUNDS):
            one = await issued(admin, f"ann-{number}")
            streams = await holding(several, one.token)
            tasks = [asyncio.create_task(held.run()) for held in streams]
            await until_open(streams)
            revoking = asyncio.create_task(admin.access.revoke_tokens([one.issued.token_id]))
            for _ in range(number):  # at another moment each time
                await asyncio.sleep(0)
            await asyncio.gather(killed(several), revoking)
            await asyncio.gather(*tasks)
            assert {held.refused for held in streams} <= {"TOKEN_REVOKED", "TOKEN_UNKNOWN"}
            assert not [token for token in await admin.access.tokens() if token.principal == f"ann-{number}"]


@pytest.fixture
def kubernetes() -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


async def test_a_login_in_the_midst_of_a_takeover_opens_a_session_that_counts(
    database: str, kubernetes: ApiServer, tmp_path: Path
) -> None:
    (tmp_path / "own").write_text(kubernetes.own_token)
    settings = tmp_path / "coordinator.toml"
    settings.write_text(
        f'''
        [coordinator.access.pods]
        api = "{kubernetes.url}"
        token_file = "{tmp_path / "own"}"
        [[coordinator.access.pods.rules]]
        namespace = "training"
        role = "user"
        tenant = "team"
        '''
    )
    async with cluster(database, 2, "--config", str(settings)) as several, as_somebody(several, "") as nobody:
        for number in range(ROUNDS):
            text = kubernetes.token("training", f"trainer-{number}")
            kubernetes.gate.clear()  # the leader dies while it waits for Kubernetes' word
            logging_in = asyncio.create_task(nobody.access.login(service_account_token=text))
            if number:
                kubernetes.gate.set()
            await asyncio.sleep(0)
            taking_over = asyncio.create_task(killed(several))
            kubernetes.gate.set()
            session, _ = await asyncio.gather(logging_in, taking_over)
            async with as_somebody(several, session.token) as pod, administrator(several) as admin:
                assert (await pod.access.whoami()).principal == f"sa/training/trainer-{number}"
                # At most one more, that nobody was told of; it ends by itself, and all end together.
                ended = await admin.access.revoke_tokens(principal=f"sa/training/trainer-{number}")
                assert session.issued.token_id in {token.token_id for token in ended}
                assert len(ended) <= 2
                with pytest.raises(NotLoggedIn):
                    await pod.access.whoami()


async def test_a_join_in_the_midst_of_a_takeover_brings_one_key(database: str, node: Node) -> None:
    async with cluster(database) as several, administrator(several) as admin:
        made = await admin.access.invite_node("gpu-07")
        string = ConnectionString(tuple(several.addresses), made.invite, node="gpu-07").encode()
        (code, said), _ = await asyncio.gather(run_join(node, string, "--node-name", "gpu-07"), killed(several))
        assert code == 0, said
        member = read_membership(node.state_dir)
        assert member is not None
        again, said = await run_join(node, string, "--node-name", "gpu-07")
        assert again == 0, said
        now = read_membership(node.state_dir)
        assert now is not None
        assert now.key_pem == member.key_pem
        audit = await admin.access.audit()
        assert {entry.subject for entry in audit.entries if entry.action == "Join"} == {member.node_id}
        assert len([entry for entry in audit.entries if entry.action == "Join"]) == 1


def believed(address: str, ca: str) -> bool:
    """Whether who trusts this believes the certificate that is shown there."""
    context = ssl.create_default_context(cadata=ca)
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host):
            return True
    except ssl.SSLCertVerificationError:
        return False


async def test_the_authority_is_exchanged_across_takeovers(database: str, tmp_path: Path) -> None:
    """Both coordinators show the same, whoever leads; what has been taken up is known to the next leader."""
    async with contextlib.AsyncExitStack() as ending:
        several = Cluster(database, 0)
        for number in range(2):
            address = free_address()  # by which it is known; it listens where others could connect, so there is TLS
            settings = tmp_path / f"{number}.toml"
            settings.write_text(f'[coordinator.access]\ndir = "{tmp_path / str(number)}"\n')
            flags = ("--listen", f"0.0.0.0:{address.rpartition(':')[2]}", "--config", str(settings))
            several.replicas.append(Replica(database, *flags, "--log-level", "error", address=address))
        ending.callback(several.close)
        await asyncio.to_thread(several.start)
        first = (tmp_path / "0" / "ca.pem").read_text()
        tls = ClientTls(ca_pem=first)
        admin = await ending.enter_async_context(
            AsyncPool(several.addresses, tls=tls, tenant="team", timeout_s=60.0, retry=SOON)
        )
        ann = await issued(admin, "ann")
        began, _ = await asyncio.gather(admin.access.rotate_authority(), killed(several))
        second = began.authorities_pem.removesuffix(first)
        assert len(fingerprints(second)) == 1
        person = await ending.enter_async_context(
            AsyncPool(several.addresses, token=ann.token, tls=tls, timeout_s=60.0, retry=SOON)
        )
        await person.access.authority(fingerprints(began.authorities_pem))
        await killed(several)
        use = await admin.access.authority_use()
        assert use.authority == began
        assert not use.behind, "what ann has said is durable"
        await admin.access.retire_authority()
        for address in several.addresses:  # the one that stands by follows within its next look
            await eventually(partial(believed, address, second), f"{address} shows the second")
            assert believed(address, first)
        await killed(several)
        only_second = AsyncPool(several.addresses, tls=ClientTls(ca_pem=second), timeout_s=60.0, retry=SOON)
        async with only_second as later:
            assert [bool(each.retired_ms) for each in (await later.access.authority()).generations] == [True, False]
