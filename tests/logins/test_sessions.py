"""Sessions over gRPC: what they open, how they end, and that one which was told is durable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from aliquot.common.errors import ConfigError
from aliquot.coordinator.coordinator import Coordinator
from aliquot.coordinator.core.books.access import SESSIONS_PER_PRINCIPAL_MAX
from aliquot.coordinator.logins.config import OidcRule, OidcSettings, PodRule, PodSettings
from aliquot.v1 import access_pb2, access_pb2_grpc
from tests.access.people import OTHER, OWN, Person, refusal, watching
from tests.access.test_ends import why_it_ended
from tests.coordinator.pool import Pool, allocation, reason_of, running, settings_for, sqlite
from tests.identity import ADMIN_TOKEN, access
from tests.logins.issuer import CLIENT, Issuer, issuer

WHO = access_pb2.WhoAmIRequest()


@pytest.fixture
def idp() -> Iterator[Issuer]:
    with issuer() as made:
        yield made


def settings_of(idp: Issuer, journal: str = "memory:", **fields: Any) -> Any:
    rules = (
        OidcRule(group="ml", role="user", tenant=OWN),
        OidcRule(group="leads", role="manager", tenant=OWN),
        OidcRule(group="others", role="user", tenant=OTHER),
    )
    oidc = OidcSettings(issuer=idp.url, client_id=CLIENT, rules=rules)
    return settings_for(journal, access=access(oidc=oidc), **fields)


@pytest.fixture
async def pool(idp: Issuer) -> AsyncIterator[Pool]:
    async with running(settings_of(idp)) as made:
        await made.declare(devices=4)
        yield made


async def logged_in(pool: Pool, id_token: str, **fields: Any) -> tuple[Person, Any]:
    async with grpc.aio.insecure_channel(pool.address) as channel:
        answer = await access_pb2_grpc.AccessServiceStub(channel).Login(
            access_pb2.LoginRequest(id_token=id_token, **fields)
        )
    return Person(answer.issued.principal, answer.token, pool.channel), answer.issued


async def refused_for(pool: Pool, **fields: Any) -> Any:
    async with grpc.aio.insecure_channel(pool.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await access_pb2_grpc.AccessServiceStub(channel).Login(access_pb2.LoginRequest(**fields))
    return refused.value


def admin_of(pool: Pool) -> Person:
    return Person("admin", ADMIN_TOKEN, pool.channel)


async def test_a_session_opens_what_its_rules_give_and_says_by_whom(pool: Pool, idp: Issuer) -> None:
    async with grpc.aio.insecure_channel(pool.address) as channel:
        offer = await access_pb2_grpc.AccessServiceStub(channel).DescribeLogin(access_pb2.DescribeLoginRequest())
    assert (offer.issuer, offer.client_id, "openid" in offer.scopes) == (idp.url, CLIENT, True)
    exp = int(time.time()) + 600
    ann, issued = await logged_in(pool, idp.token(exp=exp, nonce="n"), nonce="n")
    assert (issued.issued_by, issued.expires_ms) == ("oidc:127.0.0.1", exp * 1000)
    who = await ann.access.WhoAmI(WHO)
    assert (who.principal, [(grant.role, grant.scope) for grant in who.grants]) == (
        "ann@example.com",
        [(access_pb2.USER, OWN)],
    )
    assert (await ann.lease(OWN)).asked_by == "ann@example.com"
    assert await refusal(ann.leases.Allocate(allocation("0.1", tenant=OTHER))) == "ROLE_MISSING"
    audit = await admin_of(pool).access.ListAudit(access_pb2.ListAuditRequest(principal="oidc:127.0.0.1"))
    assert [(entry.action, entry.subject) for entry in audit.entries] == [
        ("Login", f"ann@example.com: session {issued.token_id}")
    ]
    _, issued = await logged_in(pool, idp.token(exp=exp + 10**6))
    assert issued.expires_ms - issued.created_ms == 12 * 3_600_000


async def test_who_is_refused_leaves_nothing_but_a_denial(pool: Pool, idp: Issuer) -> None:
    error = await refused_for(pool, id_token=idp.token(groups=["staff"]))
    assert (reason_of(error), error.code()) == ("LOGIN_RULE_MISSING", grpc.StatusCode.PERMISSION_DENIED)
    assert "staff" in str(error.details())
    assert reason_of(await refused_for(pool, id_token="x.y.z")) == "LOGIN_REFUSED"
    assert reason_of(await refused_for(pool, id_token=idp.token(email="admin"))) == "INVALID_FIELD"
    assert reason_of(await refused_for(pool, id_token=idp.token(email="sa/a/b"))) == "INVALID_FIELD"
    assert reason_of(await refused_for(pool, id_token=idp.token(email="an\nn"))) == "INVALID_FIELD"
    assert reason_of(await refused_for(pool)) == "LOGIN_NOT_OFFERED"
    denials = await admin_of(pool).access.ListDenials(access_pb2.ListDenialsRequest())
    assert {denial.method for denial in denials.denials} == {"Login"}
    assert {token.principal for token in pool.coordinator.view.callers.tokens.values()} == {"admin"}


async def test_a_provider_that_is_down_is_named_and_others_go_on(pool: Pool, idp: Issuer) -> None:
    idp.status = 500
    error = await refused_for(pool, id_token=idp.token())
    assert reason_of(error) == "PROVIDER_UNAVAILABLE"
    assert idp.url in str(error.details())
    await pool.allocate("0.1", tenant=OWN)


async def test_a_login_that_waits_for_the_provider_holds_nobody_up(pool: Pool, idp: Issuer) -> None:
    idp.gate.clear()
    waiting = asyncio.ensure_future(logged_in(pool, idp.token()))
    await pool.allocate("0.1", tenant=OWN)
    assert not waiting.done()
    idp.gate.set()
    ann, _ = await waiting
    await ann.access.WhoAmI(WHO)


async def test_a_session_ends_when_it_is_revoked_and_the_oldest_when_there_are_too_many(
    pool: Pool, idp: Issuer
) -> None:
    ann, issued = await logged_in(pool, idp.token())
    async with watching(ann) as stream:
        await admin_of(pool).access.RevokeTokens(access_pb2.RevokeTokensRequest(token_ids=[issued.token_id]))
        assert await why_it_ended(stream) == "TOKEN_REVOKED"
    assert await refusal(ann.access.WhoAmI(WHO)) == "TOKEN_UNKNOWN"
    first, _ = await logged_in(pool, idp.token())
    async with watching(first) as stream:
        later = [(await logged_in(pool, idp.token()))[0] for _ in range(SESSIONS_PER_PRINCIPAL_MAX)]
        assert await why_it_ended(stream) == "TOKEN_REVOKED"
    for person in later:
        await person.access.WhoAmI(WHO)


async def test_a_session_ends_with_what_vouched_for_it(pool: Pool, idp: Issuer) -> None:
    ann, _ = await logged_in(pool, idp.token(exp=time.time() + 1.5))
    async with watching(ann) as stream:
        assert await why_it_ended(stream) == "TOKEN_EXPIRED"


async def test_a_manager_by_session_gives_nothing_that_outlasts_it(pool: Pool, idp: Issuer) -> None:
    boss, _ = await logged_in(pool, idp.token(email="boss@example.com", groups=["leads"]))
    grant = access_pb2.RoleGrant(role=access_pb2.MANAGER, scope=OWN)
    request = access_pb2.GrantRoleRequest(principal=boss.name, grant=grant)
    assert await refusal(boss.access.GrantRole(request)) == "ROLE_MISSING"
    assert await refusal(boss.access.GrantRole(access_pb2.GrantRoleRequest(principal="bob", grant=grant))) == (
        "ROLE_MISSING"
    )
    made = access_pb2.IssueTokenRequest(principal="bob", grants=[grant])
    assert await refusal(boss.access.IssueToken(made)) == "ROLE_MISSING"
    # For who has the roles here already it makes a token, which ends with the session.
    admin = admin_of(pool)
    await admin.access.GrantRole(access_pb2.GrantRoleRequest(principal="ci", grant=grant))
    issued = await boss.access.IssueToken(access_pb2.IssueTokenRequest(principal="ci"))
    job = Person("ci", issued.token, pool.channel)
    async with watching(job) as stream:
        session = (await boss.access.WhoAmI(WHO)).token_id
        await admin.access.RevokeTokens(access_pb2.RevokeTokensRequest(token_ids=[session]))
        assert await why_it_ended(stream) == "TOKEN_REVOKED"
    assert await refusal(job.access.WhoAmI(WHO)) == "TOKEN_UNKNOWN"


async def test_a_manager_sees_only_those_whose_sessions_are_of_its_tenant(pool: Pool, idp: Issuer) -> None:
    boss, _ = await logged_in(pool, idp.token(email="boss@example.com", groups=["leads"]))
    await logged_in(pool, idp.token())
    await logged_in(pool, idp.token(email="far@example.com", groups=["others"]))
    listed = await boss.access.ListPrincipals(access_pb2.ListPrincipalsRequest())
    assert {principal.name for principal in listed.principals} == {"boss@example.com", "ann@example.com"}


async def test_a_session_that_was_told_outlives_the_leader_that_told_it(idp: Issuer, tmp_path: Path) -> None:
    settings = settings_of(idp, sqlite(tmp_path / "journal.db"), fsync_delay_ms=20)
    told: list[str] = []
    for pause_s in (0.0, 0.01, 0.03, 0.1):
        async with running(settings) as pool:
            for token in told:
                await Person("ann@example.com", token, pool.channel).access.WhoAmI(WHO)
            if not told:  # the keys are known then
                told.append((await logged_in(pool, idp.token()))[0].token)
            under_way = [asyncio.ensure_future(logged_in(pool, idp.token(email=f"p{n}@x"))) for n in range(5)]
            await asyncio.sleep(pause_s)
            pool.coordinator.stop()
            for outcome in await asyncio.gather(*under_way, return_exceptions=True):
                if isinstance(outcome, tuple):
                    told.append(outcome[0].token)
                else:
                    assert isinstance(outcome, grpc.aio.AioRpcError)
    async with running(settings) as pool:
        for token in told:
            assert (await Person("", token, pool.channel).access.WhoAmI(WHO)).grants


async def test_pools_without_a_provider_say_so() -> None:
    async with running() as pool:
        assert reason_of(await refused_for(pool, id_token="x")) == "LOGIN_NOT_OFFERED"


@pytest.mark.parametrize(
    "broken",
    [
        {"oidc": OidcSettings(issuer="https://login.example.com", client_id="x", ca_file=Path("/nowhere"))},
        {"pods": PodSettings(rules=(PodRule(namespace="n", role="user"),))},
    ],
)
async def test_settings_that_can_not_work_are_told_at_the_start(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError):
        Coordinator(settings_for(access=access(**broken)))
