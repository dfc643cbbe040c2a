"""Which ID tokens count, and what is done while the provider is down, slow or changes its keys."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.clock import SystemClock
from aliquot.common.duties import Duties
from aliquot.common.errors import AliquotError
from aliquot.coordinator.core.books.roles import Grant, Role
from aliquot.coordinator.errors import LoginRefused, LoginRuleMissing, ProviderUnavailable
from aliquot.coordinator.logins import provider
from aliquot.coordinator.logins.config import OidcRule, OidcSettings, PodSettings
from aliquot.coordinator.logins.oidc import OidcLogins
from aliquot.coordinator.logins.pods import PodLogins
from tests.logins.issuer import CLIENT, Issuer, issuer, new_key
from tests.manual_clock import ManualClock

HOUR_MS = 3_600_000


@pytest.fixture
def idp() -> Iterator[Issuer]:
    with issuer() as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock(0).now_ms())


def settings_of(idp: Issuer, **fields: Any) -> OidcSettings:
    rules = (
        OidcRule(group="ml", role="user", tenant="vision"),
        OidcRule(group="ops", role="operator"),
        OidcRule(user="ann@example.com", role="viewer"),
    )
    return OidcSettings(issuer=idp.url, client_id=CLIENT, rules=rules, **fields)


@pytest.fixture
def duties() -> Duties:
    return Duties()


@pytest.fixture
def logins(idp: Issuer, clock: ManualClock, duties: Duties) -> OidcLogins:
    return OidcLogins(settings_of(idp), clock, duties.tell)


async def test_who_is_vouched_for_gets_what_the_rules_give(idp: Issuer, logins: OidcLogins) -> None:
    vouched = await logins.vouch(idp.token())
    assert (vouched.principal, vouched.by) == ("ann@example.com", "oidc:127.0.0.1")
    assert vouched.grants == (Grant(Role.VIEWER), Grant(Role.USER, "vision"))
    bob = await logins.vouch(idp.token(email="bob@example.com", groups="ops", nonce="n"), "n")
    assert bob.grants == (Grant(Role.OPERATOR),)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA", "Ed25519"])
async def test_signatures_by_public_keys_count(idp: Issuer, logins: OidcLogins, algorithm: str) -> None:
    idp.keys = [new_key("k2", algorithm), new_key("k1")]
    assert (await logins.vouch(idp.token(alg=algorithm))).principal == "ann@example.com"
    with pytest.raises(LoginRefused, match="has signed"):
        await logins.vouch(idp.token(new_key("k2", algorithm), alg=algorithm))


async def test_who_has_no_rule_is_told_its_groups(idp: Issuer, logins: OidcLogins) -> None:
    with pytest.raises(LoginRuleMissing, match=r"groups seen in `groups`: staff, \S+ng$"):
        await logins.vouch(idp.token(email="eve@example.com", groups=["staff", "accounting"]))
    with pytest.raises(LoginRuleMissing, match="none"):
        await logins.vouch(idp.token(email="eve@example.com", groups=None))


def _b64(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _forged_none(idp: Issuer) -> str:
    _, claims, signature = idp.token().split(".")
    return f"{_b64({'alg': 'none', 'kid': 'k1'})}.{claims}.{signature}"


def _forged_hmac(idp: Issuer) -> str:
    """HS256 with the public key's text as the secret: the classic confusion of algorithms."""
    import hashlib
    import hmac

    public = idp.keys[0].as_pem(private=False)
    _, claims, _ = idp.token().split(".")
    signed = f"{_b64({'alg': 'HS256', 'kid': 'k1'})}.{claims}"
    return f"{signed}.{_b64(hmac.new(public, signed.encode(), hashlib.sha256).digest())}"


def _own_key_inside(idp: Issuer) -> str:
    key = new_key("k1")
    return idp.token(key, header={"jwk": key.as_dict(private=False)})


BAD = {
    "alg none": (_forged_none, "signed by 'none'"),
    "HS256 with the public key": (_forged_hmac, "signed by 'HS256'"),
    "a key of its own in the header": (_own_key_inside, "has signed|can't be read"),
    "another audience": (lambda idp: idp.token(aud="other"), "`aud`"),
    "no audience": (lambda idp: idp.token(aud=None), "`aud`"),
    "another issuer": (lambda idp: idp.token(iss="https://evil.example"), "`iss`"),
    "no expiry": (lambda idp: idp.token(exp=None), "when it ends"),
    "an expiry for ever": (lambda idp: idp.token(exp=1e300), "when it ends"),
    "for another client": (lambda idp: idp.token(aud=[CLIENT, "x"], azp="x"), "azp"),
    "another nonce": (lambda idp: idp.token(nonce="m"), "nonce"),
    "no nonce": (lambda idp: idp.token(), "nonce"),
    "no name": (lambda idp: idp.token(email=None, nonce="n"), "no claim `email`"),
    "not verified": (lambda idp: idp.token(email_verified=False, nonce="n"), "not verified"),
    "groups that are none": (lambda idp: idp.token(groups={"ml": 1}, nonce="n"), "no list"),
    "no token": (lambda idp: "nonsense", "can't be read"),
    "too long": (lambda idp: "x" * 20_000, "at most"),
    "changed": (lambda idp: ".".join([*idp.token().split(".")[:2], _b64(b"x" * 256)]), "has signed"),
    "other claims": (
        lambda idp: ".".join([(t := idp.token().split("."))[0], _b64({"email": "root"}), t[2]]),
        "has signed",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_forged_or_meant_for_others_is_refused(idp: Issuer, logins: OidcLogins, name: str) -> None:
    make, said = BAD[name]
    with pytest.raises(LoginRefused, match=said):
        await logins.vouch(make(idp), "n")


async def test_clocks_that_differ(idp: Issuer, logins: OidcLogins, clock: ManualClock) -> None:
    now = clock.now_ms() // 1000
    for off in (-30, 30):
        await logins.vouch(idp.token(iat=now + off, nbf=now + off))
    for claim in ("iat", "nbf"):
        claims: dict[str, Any] = {claim: now + 600}
        with pytest.raises(LoginRefused, match=f"`{claim}`") as refused:
            await logins.vouch(idp.token(None, **claims))
        assert "coordinator's clock" in refused.value.hint
    with pytest.raises(LoginRefused, match=r"expired 600 s ago, by the coordinator's clock"):
        await logins.vouch(idp.token(exp=now - 600))
    with pytest.raises(LoginRefused, match="expired 5 s ago"):  # a session can't last longer than that
        await logins.vouch(idp.token(exp=now - 5))


async def test_new_keys_are_asked_for_once_and_old_ones_forgotten(
    idp: Issuer, logins: OidcLogins, clock: ManualClock
) -> None:
    old = idp.token()
    await logins.vouch(old)
    assert idp.asked.count("/jwks") == 1
    idp.keys = [new_key("k9")]
    with pytest.raises(LoginRefused):  # within ten seconds strangers can't make us ask again
        await logins.vouch(idp.token(header={"kid": "k7"}))
    assert idp.asked.count("/jwks") == 1
    clock.advance(provider.ASKED_AGAIN_MS)
    several = [logins.vouch(idp.token()) for _ in range(20)]
    assert {vouched.principal for vouched in await asyncio.gather(*several)} == {"ann@example.com"}
    assert idp.asked.count("/jwks") == 2
    with pytest.raises(LoginRefused, match="'k1'"):
        await logins.vouch(old)


async def test_a_token_that_names_no_key(idp: Issuer, logins: OidcLogins, clock: ManualClock) -> None:
    await logins.vouch(idp.token(header={"kid": None}))
    idp.keys = [new_key("k2")]
    clock.advance(provider.ASKED_AGAIN_MS)
    await logins.vouch(idp.token(header={"kid": None}))


async def test_logins_go_on_while_the_provider_is_down_for_a_day(
    idp: Issuer, logins: OidcLogins, clock: ManualClock, duties: Duties
) -> None:
    await logins.vouch(idp.token())
    assert duties.all() == {"openid-keys": ""}
    idp.status = 503
    for _ in range(3):
        clock.advance(7 * HOUR_MS)
        now = clock.now_ms() // 1000
        assert (await logins.vouch(idp.token(iat=now, exp=now + 60))).expires_ms == (now + 60) * 1000
    clock.advance(provider.ASKED_AGAIN_MS)
    with pytest.raises(ProviderUnavailable, match="status 503"):
        await logins.vouch(idp.token(header={"kid": "new"}))
    clock.advance(7 * HOUR_MS)
    now = clock.now_ms() // 1000
    with pytest.raises(ProviderUnavailable, match="status 503"):
        await logins.vouch(idp.token(iat=now, exp=now + 60))
    assert "can't be had: " in duties.failing()["openid-keys"], "while logins go on, nobody else says so"
    idp.status = 200
    clock.advance(provider.ASKED_AGAIN_MS)
    await logins.vouch(idp.token(iat=now, exp=now + 3600))
    assert not duties.failing()


async def test_a_slow_provider_is_given_up_and_does_not_hold_up_others(
    idp: Issuer, logins: OidcLogins, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "ANSWER_S", 0.1)
    idp.gate.clear()
    with pytest.raises(ProviderUnavailable, match="no answer within"):
        await logins.vouch(idp.token())
    with pytest.raises(ProviderUnavailable):  # and is not asked at once again
        await logins.vouch(idp.token())
    assert len(idp.asked) == 1
    idp.gate.set()
    clock.advance(provider.ASKED_AGAIN_MS)
    monkeypatch.setattr(provider, "ANSWER_S", 30)
    await logins.vouch(idp.token())
    idp.gate.clear()
    clock.advance(provider.FRESH_MS + 1)
    now = clock.now_ms() // 1000
    await logins.vouch(idp.token(iat=now, exp=now + 60))  # its answer is not waited for
    idp.gate.set()


async def test_a_provider_that_says_it_is_another_is_not_believed(idp: Issuer, logins: OidcLogins) -> None:
    idp.named = "https://other.example"
    with pytest.raises(ProviderUnavailable, match=r"other\.example"):
        await logins.vouch(idp.token())


@pytest.mark.parametrize(
    "fields",
    [
        {"issuer": "http://login.example.com", "client_id": "x"},
        {"issuer": "https://user@login.example.com", "client_id": "x"},
        {"issuer": "https://login.example.com"},
        {"rules": (OidcRule(group="a", role="user"),)},
        {"issuer": "https://login.example.com", "client_id": "x", "scopes": ("email",)},
    ],
)
def test_settings_that_can_not_be_meant(fields: Any) -> None:
    with pytest.raises(ValueError):
        OidcSettings(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "user"},
        {"role": "user", "group": "a", "user": "b"},
        {"role": "operator", "group": "a", "tenant": "t"},
        {"role": "user", "group": "a", "tenant": "not//one"},
    ],
)
def test_rules_that_can_not_be_meant(fields: Any) -> None:
    with pytest.raises((ValueError, AliquotError)):
        OidcRule(**fields)


PIECES = st.one_of(
    st.binary(max_size=40).map(_b64),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ).map(_b64),
    st.fixed_dictionaries(
        {"alg": st.sampled_from(["RS256", "EdDSA", "none", 1, None, []])},
        optional={
            "kid": st.sampled_from(["k1", "", 1, None, {}]),
            "crit": st.sampled_from([["b64"], ["x"], "x", 1]),
            "b64": st.booleans(),
            "aud": st.sampled_from(["aliquot", ["aliquot"], {"aliquot": 1}, 1]),
            "exp": st.sampled_from([1, 1e400, float("nan"), "1", 10**400, True]),
            "sub": st.sampled_from(["system:serviceaccount:", "system:serviceaccount:a:b", 1]),
        },
    ).map(_b64),
    st.text(max_size=20),
)


@given(st.lists(PIECES, min_size=1, max_size=5).map(".".join))
def test_whatever_strangers_send_is_refused_in_words(text: str) -> None:
    async def attempt() -> None:
        clock = ManualClock(SystemClock(0).now_ms())
        logins = OidcLogins(OidcSettings(issuer="http://127.0.0.1:9", client_id=CLIENT), clock, Duties().tell)
        with pytest.raises((LoginRefused, ProviderUnavailable)):
            await logins.vouch(text)
        pods = PodLogins(PodSettings(api="http://127.0.0.1:9", token_file=Path("/dev/null")), clock)
        with pytest.raises((LoginRefused, ProviderUnavailable)):
            await pods.vouch(text)

    asyncio.run(attempt())
