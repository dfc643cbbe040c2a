"""Roles and tokens in the core: what may be given by whom, and what is left when it is taken."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books import access as records
from aliquot.coordinator.core.books.access import (
    EXPIRED_KEPT_MS,
    FIRST_ADMIN,
    SESSION_MS_MAX,
    SESSIONS_PER_PRINCIPAL_MAX,
    SYSTEM,
    AccessBooks,
    Actor,
    Token,
)
from aliquot.coordinator.core.books.roles import Action, Grant, Role, covers, ever_may, may, may_give, needed
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.evolve.snapshot import from_snapshot, state_hash, to_snapshot
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import (
    DomainError,
    InvalidField,
    LastAdministrator,
    RoleMissing,
    TokenEnded,
    TokenNotFound,
)

T = TypeVar("T")
SELF = Actor(SYSTEM)
ADMIN = Grant(Role.ADMIN)
TENANTS = st.sampled_from(["", "a", "a/b", "a/b/c", "ab", "b"])
GRANTS = st.builds(Grant, st.sampled_from(list(Role)), TENANTS)


class Pool:
    """A decider whose commands come from named callers."""

    def __init__(self) -> None:
        self.decider = Decider(State.fresh())
        self.now_ms = 1_000

    def do(self, command: c.Command[T]) -> T:
        decision = self.decider.decide(command, self.now_ms)
        self.decider.carry_out(decision, self.now_ms)
        return decision.outcome

    def token(self, principal: str, *grants: Grant, by: Actor = SELF, number: int = 0, expires_ms: int = 0) -> Actor:
        number = number or len(self.decider.state.access.tokens) + 1
        token = Token(f"{number:012x}", bytes(32), principal, 0, expires_ms)
        self.do(c.IssueToken(by, token, grants))
        return Actor(principal, token.token_id)

    @property
    def access(self) -> AccessBooks:
        return self.decider.state.access


@pytest.fixture
def pool() -> Pool:
    made = Pool()
    made.token(FIRST_ADMIN, ADMIN)
    return made


@given(st.lists(GRANTS, max_size=4), st.sampled_from(list(Action)), TENANTS)
def test_what_is_allowed_somewhere_is_not_refused_at_the_door(grants: list[Grant], action: Action, scope: str) -> None:
    if may(grants, action, scope):
        assert ever_may(grants, action)


@given(GRANTS, st.sampled_from(list(Action)), TENANTS, TENANTS)
def test_a_role_on_a_tenant_reaches_what_is_below_and_nothing_else(
    grant: Grant, action: Action, scope: str, below: str
) -> None:
    if grant.scope and may([grant], action, scope) and action in (Action.ALLOCATE, Action.READ_LEASES):
        assert covers(grant.scope, scope)
        assert may([grant], action, f"{scope}/{below or 'x'}")
    assert not covers("a", "ab")


@given(st.lists(GRANTS, max_size=4), GRANTS, st.sampled_from(list(Action)), TENANTS)
def test_nobody_gives_more_than_they_have(grants: list[Grant], given: Grant, action: Action, scope: str) -> None:
    administers = any(grant == ADMIN for grant in grants)
    if may_give(grants, given) and not administers and may([given], action, scope):
        assert may(grants, action, scope) or action in (Action.IDENTIFY, Action.READ_POOL)


@pytest.mark.parametrize("action", list(Action))
def test_each_action_says_what_it_needs(action: Action) -> None:
    assert needed(action, "a")


def test_a_manager_gives_roles_below_its_tenant_only(pool: Pool) -> None:
    boss = pool.token("boss", Grant(Role.MANAGER, "a"))
    pool.do(c.GrantRole(boss, "ann", Grant(Role.USER, "a/b")))
    for grant in (Grant(Role.USER, "b"), Grant(Role.USER), Grant(Role.OPERATOR), ADMIN):
        with pytest.raises(RoleMissing):
            pool.do(c.GrantRole(boss, "ann", grant))
    assert pool.access.grants_of("ann") == (Grant(Role.USER, "a/b"),)


def test_a_token_is_not_made_for_somebody_who_may_do_more(pool: Pool) -> None:
    boss = pool.token("boss", Grant(Role.MANAGER, "a"))
    with pytest.raises(RoleMissing):
        pool.token(FIRST_ADMIN, by=boss)
    with pytest.raises(RoleMissing):
        pool.do(c.RevokeTokens(boss, principal=FIRST_ADMIN))


def test_a_token_never_outlives_the_one_that_made_it(pool: Pool) -> None:
    short = pool.token("ann", Grant(Role.USER, "a"), expires_ms=5_000)
    pool.token("ann", by=short, number=77)
    pool.token("ann", by=short, number=78, expires_ms=9_000)
    assert {pool.access.tokens[f"{number:012x}"].expires_ms for number in (77, 78)} == {5_000}


def test_the_last_administrator_stays(pool: Pool) -> None:
    with pytest.raises(LastAdministrator):
        pool.do(c.RevokeRole(SELF, FIRST_ADMIN, ADMIN))
    pool.do(c.GrantRole(SELF, "eve", ADMIN))
    pool.do(c.RevokeRole(SELF, FIRST_ADMIN, ADMIN))
    assert pool.access.grants_of("eve") == (ADMIN,)


def test_what_was_revoked_meanwhile_gives_nothing(pool: Pool) -> None:
    boss = pool.token("boss", Grant(Role.MANAGER, "a"))
    pool.do(c.RevokeRole(SELF, "boss", Grant(Role.MANAGER, "a")))
    with pytest.raises(RoleMissing):
        pool.do(c.GrantRole(boss, "ann", Grant(Role.USER, "a")))


@pytest.mark.parametrize(
    ("name", "grant"),
    [
        ("lease:x", Grant(Role.USER, "a")),
        ("", Grant(Role.USER, "a")),
        ("a b", Grant(Role.USER, "a")),
        ("x" * 300, Grant(Role.USER, "a")),
        ("ann", Grant(Role.WORKLOAD, "l-1")),
        ("ann", Grant(Role.AGENT, "n1")),
        ("ann", Grant(Role.OPERATOR, "a")),
        ("ann", Grant(Role.USER, "a//b")),
        ("ann", Grant(Role.USER, "../../x")),
    ],
)
def test_what_nobody_can_be_given(pool: Pool, name: str, grant: Grant) -> None:
    with pytest.raises(DomainError) as refused:
        pool.do(c.GrantRole(SELF, name, grant))
    assert refused.value.reason == "INVALID_FIELD"


def test_a_token_without_any_role_is_refused(pool: Pool) -> None:
    with pytest.raises(InvalidField, match="no role"):
        pool.token("ann")
    with pytest.raises(TokenNotFound):
        pool.do(c.RevokeTokens(SELF, ("nothing",)))


def test_an_expired_token_is_forgotten_and_its_principal_with_it(pool: Pool) -> None:
    pool.token("ann", Grant(Role.USER, "a"), expires_ms=2_000)
    pool.do(c.RevokeRole(SELF, "ann", Grant(Role.USER, "a")))
    pool.now_ms = 2_000
    pool.do(c.Tick())
    assert "ann" in pool.access.principals
    pool.now_ms = 2_000 + EXPIRED_KEPT_MS
    pool.do(c.Tick())
    assert "ann" not in pool.access.principals
    assert len(pool.access.tokens) == 1


def test_who_did_what_is_put_down_where_anything_was_done(pool: Pool) -> None:
    by = msgspec.structs.replace(pool.token("boss", ADMIN), peer="peer", action="GrantRole")
    command = c.GrantRole(SELF, "ann", Grant(Role.USER, "a"))
    for _ in range(2):
        pool.do(c.OnBehalf(by, "ann", command))
    (entry,) = pool.access.audit
    assert (entry.principal, entry.action, entry.subject) == ("boss", "GrantRole", "ann")


def test_a_token_that_has_ended_brings_about_nothing_more(pool: Pool) -> None:
    ann, late = pool.token("ann", ADMIN), pool.token("late", ADMIN, expires_ms=2_000)
    pool.do(c.RevokeTokens(SELF, (ann.token_id,)))
    pool.now_ms = 2_000
    for by in (ann, late):
        another = c.IssueToken(by, Token("f" * 12, bytes(32), by.principal, 0), ())
        for command in (another, c.GrantRole(by, "eve", ADMIN)):
            with pytest.raises(TokenEnded):
                pool.do(c.OnBehalf(by, "", command))
    assert "eve" not in pool.access.principals


def test_the_coordinators_own_socket_gives_a_token_where_every_bound_is_reached(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    boss = pool.token("boss", ADMIN)
    for name in ("TOKENS_MAX", "TOKENS_PER_PRINCIPAL_MAX", "PRINCIPALS_MAX"):
        monkeypatch.setattr(records, name, 1)
    with pytest.raises(InvalidField):
        pool.token("boss", by=boss)
    assert pool.token(FIRST_ADMIN, ADMIN).token_id in pool.access.tokens


def test_principals_and_tokens_survive_a_snapshot(pool: Pool) -> None:
    pool.token("ann", Grant(Role.USER, "a"), expires_ms=2_000)
    pool.do(c.OnBehalf(Actor("boss"), "x", c.GrantRole(SELF, "bob", Grant(Role.VIEWER))))
    state = pool.decider.state
    encoded = msgspec.msgpack.encode(to_snapshot(state))
    again = from_snapshot(msgspec.msgpack.decode(encoded, type=type(to_snapshot(state))))
    assert state_hash(again) == state_hash(state)
    assert again.access.tokens_of == state.access.tokens_of
    decider = Decider(again)
    assert decider.next_due_ms(2_000 + EXPIRED_KEPT_MS - 1) == 2_000 + EXPIRED_KEPT_MS


# -- sessions

PROVIDER = Actor("oidc:login.example.com")


def session(
    pool: Pool, principal: str, *grants: Grant, number: int, expires_ms: int = 60_000, by: Actor = PROVIDER
) -> Token:
    token = Token(f"{number:012x}", bytes(32), principal, 0, expires_ms, grants=grants)
    return pool.do(c.OpenSession(by, token))


def test_nobody_makes_tokens_in_the_name_of_somebody_whom_a_provider_vouches_for(pool: Pool) -> None:
    boss = pool.token("boss", Grant(Role.MANAGER, "a"))
    session(pool, "ann", Grant(Role.USER, "a"), number=50)
    for name in ("ann", "sa/team/job"):
        with pytest.raises(RoleMissing, match="nobody else makes tokens in that name"):
            pool.token(name, Grant(Role.USER, "a"), by=boss, number=60)
    assert [token.issued_by for token in pool.access.tokens.values() if token.principal == "ann"] == [
        PROVIDER.principal
    ]
    pool.token("robot", Grant(Role.USER, "a"), by=boss, number=61)


def test_a_session_brings_its_roles_and_ends_with_them(pool: Pool) -> None:
    opened = session(pool, "ann", Grant(Role.USER, "a"), number=50, expires_ms=10**12)
    assert opened.session
    assert opened.issued_by == PROVIDER.principal
    assert opened.expires_ms == pool.now_ms + SESSION_MS_MAX
    assert session(pool, "ann", Grant(Role.USER, "a"), number=51, expires_ms=5_000).expires_ms == 5_000
    assert pool.access.grants_of("ann") == ()
    assert pool.access.grants_of_token(opened) == (Grant(Role.USER, "a"),)
    pool.do(c.RevokeTokens(Actor("ann", opened.token_id), principal="ann"))
    assert "ann" not in pool.access.principals


@pytest.mark.parametrize(
    ("principal", "by", "grants", "expires_ms"),
    [
        ("ann", Actor("boss"), (ADMIN,), 60_000),
        ("ann", SELF, (ADMIN,), 60_000),
        (FIRST_ADMIN, PROVIDER, (ADMIN,), 60_000),
        ("sa/default/trainer", PROVIDER, (ADMIN,), 60_000),
        ("trainer", Actor("kubernetes:pods"), (ADMIN,), 60_000),
        ("ann", PROVIDER, (), 60_000),
        ("ann", PROVIDER, (Grant(Role.AGENT, "n1"),), 60_000),
        ("ann", PROVIDER, (ADMIN,), 1_000),
        ("ann", PROVIDER, (ADMIN,), 0),
        ("lease:l-1", PROVIDER, (ADMIN,), 60_000),
        ("an n", PROVIDER, (ADMIN,), 60_000),
    ],
)
def test_what_nobody_can_vouch_for(
    pool: Pool, principal: str, by: Actor, grants: tuple[Grant, ...], expires_ms: int
) -> None:
    before = state_hash(pool.decider.state)
    with pytest.raises(DomainError):
        session(pool, principal, *grants, number=60, by=by, expires_ms=expires_ms)
    assert state_hash(pool.decider.state) == before


def test_the_oldest_of_too_many_sessions_goes_and_nothing_else(pool: Pool) -> None:
    kept = pool.token("ann", Grant(Role.VIEWER), number=99)
    for number in range(100, 100 + SESSIONS_PER_PRINCIPAL_MAX + 3):
        pool.now_ms += 1
        session(pool, "ann", Grant(Role.USER, "a"), number=number, expires_ms=50_000)
    left = set(pool.access.tokens_of["ann"])
    assert left == {f"{number:012x}" for number in range(103, 103 + SESSIONS_PER_PRINCIPAL_MAX)} | {kept.token_id}
    again = from_snapshot(to_snapshot(pool.decider.state))
    assert state_hash(again) == state_hash(pool.decider.state)


def test_what_a_session_brings_is_not_made_to_last(pool: Pool) -> None:
    opened = session(pool, "ann", Grant(Role.MANAGER, "a"), number=70)
    ann = Actor("ann", opened.token_id)
    with pytest.raises(RoleMissing):
        pool.do(c.GrantRole(ann, "ann", Grant(Role.MANAGER, "a")))
    with pytest.raises(RoleMissing):
        pool.token("ann", Grant(Role.USER, "a"), by=ann, number=71)
    for give in (
        lambda: pool.do(c.GrantRole(ann, "bob", Grant(Role.USER, "a"))),
        lambda: pool.token("bob", Grant(Role.USER, "a"), by=ann, number=72),
    ):
        with pytest.raises(RoleMissing, match="outlast"):
            give()
    assert "bob" not in pool.access.principals


def test_tokens_that_a_session_made_end_with_it_whoever_they_are_of(pool: Pool) -> None:
    pool.do(c.GrantRole(SELF, "ci", Grant(Role.MANAGER, "a")))
    opened = session(pool, "ann", Grant(Role.MANAGER, "a"), number=70)
    of_ci = pool.token("ci", by=Actor("ann", opened.token_id), number=71)
    again = pool.token("ci", by=of_ci, number=72)
    for made in (of_ci, again):
        assert pool.access.tokens[made.token_id].expires_ms == opened.expires_ms
        with pytest.raises(RoleMissing, match="outlast"):
            pool.do(c.GrantRole(made, "bob", Grant(Role.USER, "a")))
    lasting = pool.token("ci", number=73)
    state = from_snapshot(to_snapshot(pool.decider.state))
    assert state.access.tokens_by == pool.access.tokens_by
    ended = pool.do(c.RevokeTokens(SELF, (opened.token_id,)))
    assert {token.token_id for token in ended} == {opened.token_id, of_ci.token_id, again.token_id}
    assert set(pool.access.tokens_of["ci"]) == {lasting.token_id}
    assert not pool.access.tokens_by


@pytest.mark.parametrize("name", ["zoe", "relay/west", "console"])
def test_a_role_never_reaches_whoever_made_a_token_in_that_name_before(pool: Pool, name: str) -> None:
    admin = pool.token(FIRST_ADMIN)
    boss = pool.token("boss", Grant(Role.MANAGER, "a"), by=admin)
    first = pool.token(name, Grant(Role.USER, "a"), by=boss)
    second = pool.token(name, by=first)
    pool.do(c.GrantRole(admin, name, Grant(Role.VIEWER, "a/b")))  # which the boss may give as well
    for token in (first, second):
        with pytest.raises(InvalidField, match="boss has made token") as refused:
            pool.do(c.GrantRole(admin, name, ADMIN))
        with pytest.raises(InvalidField, match="boss has made token"):
            pool.token(name, ADMIN, by=admin)
        assert f"aliquot access token revoke {token.token_id}" in refused.value.hint
        pool.do(c.RevokeTokens(admin, (token.token_id,)))
    pool.do(c.GrantRole(admin, name, ADMIN))
    pool.do(c.RevokeRole(admin, name, ADMIN))
    pool.token(name, by=admin)
    pool.do(c.GrantRole(admin, name, ADMIN))  # an administrator's own token is in nobody's way
