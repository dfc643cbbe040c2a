"""The pool's authority is exchanged while everybody goes on; who has not taken it up is known, and comes back too."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent import node_certificate, node_key
from aliquot.agent.disk.membership import Membership, read_membership
from aliquot.agent.node_certificate import follow
from aliquot.agent.processes.apart import here
from aliquot.agent.renewal import renewed
from aliquot.client import AsyncPool, ClientTls, Refused
from aliquot.client.access import IssuedToken, Role, RoleGrant
from aliquot.client.credentials import Credential, CredentialsFile
from aliquot.common.connection_string import ConnectionString
from aliquot.common.tls import fingerprints
from aliquot.coordinator.agents.authority import Authority, Generations, NodeRequest
from aliquot.coordinator.core.books.enrolment import Generation
from aliquot.v1 import agent_pb2
from tests.agent.conftest import node
from tests.agent.harness import Node
from tests.coordinator.pool import eventually
from tests.coordinator.process import Running, serving
from tests.enrolment.test_joining import run_join
from tests.identity import ADMIN_TOKEN

__all__ = ["node"]
SECRET = bytes(range(32))
FIRST, SECOND, THIRD = Generation(1), Generation(2, b"2" * 32, 1), Generation(3, b"3" * 32, 1)
KEY = node_key.make_key()
NOW_MS = 1_800_000_000_000


def retired(*generations: Generation) -> tuple[Generation, ...]:
    return tuple(msgspec.structs.replace(each, retired_ms=1) for each in generations)


def texts(known: Generations) -> tuple[str, str]:
    return known.pem.decode(), known.vouchers.decode()


# -- whom a node trusts


def test_a_generation_is_made_from_more_than_the_pools_secret() -> None:
    """So an old copy of the journal does not tell the key of a later one."""
    assert Authority(SECRET, SECOND).pem != Authority(SECRET, Generation(2, b"x" * 32)).pem
    assert Authority(SECRET, FIRST).pem == Authority(SECRET).pem, "the first is as it was before there were others"


def test_a_node_takes_up_who_is_vouched_for_and_then_drops_who_was_before() -> None:
    one, both = Generations(SECRET, (FIRST,)), Generations(SECRET, (FIRST, SECOND))
    after = Generations(SECRET, (*retired(FIRST), SECOND))
    held = follow(one.pem.decode(), *texts(both))
    assert fingerprints(held) == fingerprints(both.pem.decode())
    assert follow(held, *texts(both)) == held
    held = follow(held, *texts(after))
    assert held == after.pem.decode()
    assert follow(held, *texts(both)) == both.pem.decode() or follow(held, *texts(both)) == held, (
        "nothing is lost by it"
    )
    assert after.pem.decode() in follow(held, *texts(one)), "nobody can have it forget the later one"


def test_who_was_away_for_several_exchanges_follows_all_of_them() -> None:
    last = Generations(SECRET, (*retired(FIRST, SECOND), THIRD))
    assert follow(Authority(SECRET, FIRST).pem.decode(), *texts(last)) == last.pem.decode()


@given(st.sampled_from(["", "no certificate", "theirs", "unvouched", "wrong key"]), st.booleans())
def test_what_somebody_in_between_makes_up_is_not_trusted(kind: str, with_ours: bool) -> None:
    ours, theirs = Generations(SECRET, (FIRST, SECOND)), Generations(bytes(32), (FIRST, SECOND))
    before = Authority(SECRET, FIRST).pem.decode()
    offered = {"theirs": theirs.pem.decode(), "unvouched": ours.newest.pem.decode(), "wrong key": theirs.pem.decode()}
    vouchers = {"theirs": theirs.vouchers.decode(), "wrong key": ours.vouchers.decode()}
    said = offered.get(kind, kind) + (before if with_ours else "")
    assert follow(before, said, vouchers.get(kind, "")) == before


async def test_a_certificate_by_the_next_authority_is_taken_with_its_voucher_only() -> None:
    both = Generations(SECRET, (FIRST, SECOND))
    member = Membership("p", "n1", ("a:1",), KEY, "", (0, 0), Authority(SECRET).pem.decode())
    chain = both.certify_node(NodeRequest(node_certificate.request(KEY, "n1")), "n1", NOW_MS, known=2)
    said = agent_pb2.Certificate(chain_pem=chain, authorities_pem=both.pem, vouchers_pem=both.vouchers)
    taken = await renewed(here, member, said)
    assert taken is not None
    assert taken.chain_pem == chain.decode()
    said.ClearField("vouchers_pem")
    assert await renewed(here, member, said) is None
    older = both.certify_node(NodeRequest(node_certificate.request(KEY, "n1")), "n1", NOW_MS, known=0)
    assert await renewed(here, member, agent_pb2.Certificate(chain_pem=older)) is not None, (
        "an agent of before generations"
    )


# -- over real TLS, with real programs


class Place:
    """A coordinator that others can reach."""

    def __init__(self, process: Running, folder: Path) -> None:
        self.address = f"127.0.0.1:{process.address.rpartition(':')[2]}"
        self.folder = folder

    @property
    def ca(self) -> str:
        return (self.folder / "access" / "ca.pem").read_text()

    def pool(self, ca: str, token: str = ADMIN_TOKEN) -> AsyncPool:
        return AsyncPool(self.address, token=token, tls=ClientTls(ca_pem=ca))

    def shown_to(self, ca: str) -> bool:
        """Whether who trusts this connects."""
        context = ssl.create_default_context(cadata=ca)
        host, _, port = self.address.partition(":")
        try:
            with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host):
                return True
        except ssl.SSLCertVerificationError:
            return False


@contextlib.asynccontextmanager
async def place(folder: Path, *flags: str) -> AsyncIterator[Place]:
    env = {"ALIQUOT_COORDINATOR_ACCESS_DIR": str(folder / "access")}
    async with serving("--listen", "0.0.0.0:0", "--journal", "memory:", *flags, env=env) as process:
        yield Place(process, folder)


def trusted_by(node: Node) -> int:
    """How many authorities its node trusts."""
    member = read_membership(node.state_dir)
    assert member is not None
    return len(fingerprints(member.authorities_pem))


async def log_in(at: Place, issued: IssuedToken, monkeypatch: pytest.MonkeyPatch) -> CredentialsFile:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(at.folder / "config"))
    monkeypatch.delenv("ALIQUOT_TOKEN", raising=False)
    monkeypatch.delenv("ALIQUOT_TOKEN_FILE", raising=False)
    file = CredentialsFile.of({"XDG_CONFIG_HOME": str(at.folder / "config")})
    file.put(Credential((at.address,), issued.token, issued.ca_pem), current=True)
    return file


async def let_in(admin: AsyncPool, at: Place, node: Node) -> None:
    """A node with its agent."""
    made = await admin.access.invite_node("gpu-07")
    string = ConnectionString((at.address,), made.invite, made.ca_pem, "gpu-07").encode()
    code, said = await run_join(node, string, "--node-name", "gpu-07")
    assert code == 0, said
    await asyncio.to_thread(node.start, "", "--node-name", "gpu-07")


async def test_everybody_goes_on_while_the_authority_is_exchanged_and_who_was_away_comes_back(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path) as at:
        first = at.ca
        admin = at.pool(first)
        await let_in(admin, at, node)
        ann = await admin.access.issue_token("ann", grants=[RoleGrant(Role.USER, "vision")])
        file = await log_in(at, ann, monkeypatch)

        began = await admin.access.rotate_authority()
        assert [each.number for each in began.generations] == [1, 2]
        with pytest.raises(Refused, match="being taken up already"):
            await admin.access.rotate_authority()
        await eventually(lambda: trusted_by(node) == 2, "the agent trusts both")
        assert at.shown_to(first), "nothing else has changed"
        assert not at.shown_to(began.authorities_pem.removesuffix(first)), "the next one is not shown yet"

        async def left() -> set[str]:
            use = await admin.access.authority_use()
            assert use.behind_total == len(use.behind)
            return {each.node_id or each.principal for each in use.behind}

        async def nodes_have_told() -> bool:
            return await left() == {"ann"}

        await eventually(nodes_have_told, "only those who did not connect are left")
        with pytest.raises(Refused, match="ann"):
            await admin.access.retire_authority()
        async with AsyncPool() as pool:
            assert (await pool.access.whoami()).principal == "ann"

        async def nobody() -> bool:
            return not await left()

        await eventually(nobody, "all have taken it up")
        kept = file.current()
        assert kept is not None
        assert fingerprints(kept.ca) == fingerprints(began.authorities_pem)

        await admin.access.retire_authority()
        second = began.authorities_pem.removesuffix(first)
        await eventually(lambda: at.shown_to(second), "the later one is shown")
        assert at.shown_to(first), "and how it follows from the one before"
        await eventually(lambda: trusted_by(node) == 1, "the agent has dropped the older one")
        assert node.log.count("session ") == 1, "in one session all the way"
        member = read_membership(node.state_dir)
        assert member is not None
        assert member.authorities_pem == second
        by = x509.load_pem_x509_certificate(second.encode())
        await eventually(lambda: _made_by(node, by), "its certificate is by the later one")

        # An agent that is away for a whole exchange is named, and comes back by its key all the same.
        await asyncio.to_thread(node.kill9)
        await admin.access.rotate_authority()
        with pytest.raises(Refused, match=member.node_id):
            await admin.access.retire_authority()
        third = (await admin.access.retire_authority(force=True)).authorities_pem
        await asyncio.to_thread(node.start, "", "--node-name", "gpu-07")

        def took_up() -> bool:
            now = read_membership(node.state_dir)
            return now is not None and now.authorities_pem == third and now.key_pem == member.key_pem

        await eventually(took_up, "it is back and trusts the third")
        with pytest.raises(Refused, match="the only one"):
            await admin.access.retire_authority()
        audit = await admin.access.audit("admin")
        done = [each.action for each in audit.entries if each.action.endswith("Authority")]
        assert done == ["RetireAuthority", "RotateAuthority"] * 2
        await admin.close()


def _made_by(node: Node, authority: x509.Certificate) -> bool:
    member = read_membership(node.state_dir)
    assert member is not None
    try:
        x509.load_pem_x509_certificate(member.chain_pem.encode()).verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - of whatever kind
        return False
    return True
