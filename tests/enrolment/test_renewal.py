"""Certificates renew by themselves, also those that are over; the key is what counts."""

from __future__ import annotations

import asyncio
import random

import grpc.aio
import msgspec
import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent import node_certificate, node_key
from aliquot.agent.disk.membership import Membership, read_membership, write_membership
from aliquot.agent.processes.apart import here
from aliquot.agent.renewal import REST_S, Renewal, renewed
from aliquot.common.certificates import lifetime_ms
from aliquot.common.connection_string import ConnectionString
from aliquot.coordinator.agents.authority import AGENT_LIFE, Authority, NodeRequest
from aliquot.v1 import agent_pb2
from tests.agent.conftest import node
from tests.agent.harness import Node
from tests.coordinator.pool import agents, eventually, reason_of, running
from tests.enrolment.keyed import invite, joined
from tests.enrolment.test_joining import run_join

__all__ = ["node"]
KEY = node_key.make_key()
AUTHORITY = Authority(bytes(32))
MADE_MS = 1_800_000_000_000
LIFE_MS = int(AGENT_LIFE.total_seconds() * 1000)
CHAIN = AUTHORITY.certify_node(NodeRequest(node_certificate.request(KEY, "n1")), "n1", MADE_MS).decode()
MEMBER = Membership("p-1", "n1", ("a:1",), KEY, CHAIN, lifetime_ms(CHAIN), AUTHORITY.pem.decode())


def due_after_ms(age_ms: int, seed: int = 0) -> int:
    """How long after it was looked at, at that age, a certificate is renewed."""
    clock = [0.0]
    renewal = Renewal(
        MEMBER, wall_ms=lambda: MADE_MS + age_ms, monotonic_s=lambda: clock[0], random=random.Random(seed)
    )
    while not renewal.due():
        clock[0] += 600
    assert not renewal.due(), "once, until there was time for an answer"
    clock[0] += REST_S
    assert renewal.due()
    return int((clock[0] - REST_S) * 1000)


@given(st.integers(0, 1 << 32), st.integers(-10, 10))
def test_it_is_renewed_between_half_and_two_thirds_of_its_life_whatever_the_clock(seed: int, off_min: int) -> None:
    off_ms = off_min * 60_000
    assert 0.48 * LIFE_MS <= due_after_ms(off_ms, seed) + off_ms <= 0.68 * LIFE_MS


@given(st.integers(1, 20_000), st.integers(0, 1 << 32))
def test_a_clock_that_is_days_or_decades_behind_puts_it_off_no_longer_than_its_life(days: int, seed: int) -> None:
    assert due_after_ms(-days * 86_400_000, seed) <= 0.68 * LIFE_MS


def test_ten_thousand_agents_do_not_come_in_the_same_minute() -> None:
    minutes = [due_after_ms(0, seed) // 60_000 for seed in range(200)]
    assert max(minutes.count(minute) for minute in minutes) <= 8


@given(st.integers(0, 400))
def test_one_that_is_over_is_due_at_once(days: int) -> None:
    assert due_after_ms(LIFE_MS + days * 86_400_000) == 0


async def test_a_session_renews_for_its_own_key_only() -> None:
    async with running() as pool:
        agent = await joined(pool, "n1")
        async with agents(agent):
            await agent.ask_for_certificate(node_certificate.request(agent.key_pem, "whatever it says"))
            await eventually(lambda: agent.certificates, "it has another certificate")
            made = x509.load_pem_x509_certificate(agent.certificates[0].chain_pem)
            uri = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            assert [name.value.rpartition("/")[2] for name in uri] == ["n1"]
            await agent.ask_for_certificate(node_certificate.request(node_key.make_key(), "n1"))
            await eventually(lambda: agent.ended, "a session that asks for another key's is ended")
            assert isinstance(agent.ended, grpc.aio.AioRpcError)
            assert reason_of(agent.ended) == "INVALID_FIELD"


async def test_an_agent_whose_certificate_is_long_over_comes_back_and_renews_it(node: Node) -> None:
    async with running() as pool:
        string = ConnectionString((pool.address,), await invite(pool, "gpu-07"), node="gpu-07").encode()
        code, said = await run_join(node, string, "--node-name", "gpu-07")
        assert code == 0, said
        member = read_membership(node.state_dir)
        assert member is not None
        secret = pool.coordinator.journal.pool_secret
        request = NodeRequest(node_certificate.request(member.key_pem, member.node_id))
        old = Authority(secret).certify_node(request, member.node_id, 1_700_000_000_000).decode()
        write_membership(node.state_dir, msgspec.structs.replace(member, chain_pem=old, life_ms=lifetime_ms(old)))
        await asyncio.to_thread(node.start, "", "--node-name", "gpu-07")

        def renewed() -> bool:
            now = read_membership(node.state_dir)
            return now is not None and now.chain_pem != old

        await eventually(renewed, "its certificate is new")
        now = read_membership(node.state_dir)
        assert now is not None
        assert now.key_pem == member.key_pem
        x509.load_pem_x509_certificate(now.chain_pem.encode()).verify_directly_issued_by(Authority(secret).certificate)


async def test_what_somebody_in_between_makes_up_changes_neither_the_certificate_nor_whom_a_node_trusts() -> None:
    other = Authority(bytes(31) + b"1")
    theirs = other.certify_node(NodeRequest(node_certificate.request(KEY, "n1")), "n1", MADE_MS)
    foreign = AUTHORITY.certify_node(NodeRequest(node_certificate.request(node_key.make_key(), "n1")), "n1", MADE_MS)
    for chain in (theirs, foreign, b"no certificate", b"\xff"):
        assert (
            await renewed(here, MEMBER, agent_pb2.Certificate(chain_pem=chain, authorities_pem=AUTHORITY.pem)) is None
        )
    again = AUTHORITY.certify_node(NodeRequest(node_certificate.request(KEY, "n1")), "n1", MADE_MS + LIFE_MS)
    kept = await renewed(here, MEMBER, agent_pb2.Certificate(chain_pem=again, authorities_pem=other.pem))
    life_ms = lifetime_ms(again.decode())
    assert kept == msgspec.structs.replace(MEMBER, chain_pem=again.decode(), life_ms=life_ms)


@pytest.mark.parametrize("chain", ["", "no certificate"])
def test_a_certificate_that_can_not_be_read_is_due_at_once(chain: str) -> None:
    member = msgspec.structs.replace(MEMBER, chain_pem=chain, life_ms=lifetime_ms(chain))
    renewal = Renewal(member, wall_ms=lambda: MADE_MS, monotonic_s=lambda: 0.0, random=random.Random(0))
    assert renewal.due()
