"""Invites and keys in the core: one key a node, one node an invite, whatever comes in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books import enrolment as records
from aliquot.coordinator.core.books.enrolment import INVITE_KEPT_MS, Invite
from aliquot.coordinator.core.deciding.enrolment import behind, trusted
from aliquot.coordinator.core.evolve.snapshot import from_snapshot, state_hash, to_snapshot
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import (
    AuthorityInUse,
    AuthorityUnchanged,
    InvalidField,
    InviteExpired,
    InviteUnknown,
    InviteUsedUp,
)
from tests.core.harness import Books
from tests.core.machine import BooksMachine, walks

NODES = ("n-1", "n-2", "n-3")
NAMES = ("gpu-1", "gpu-2", "gpu-3")
KEYS = tuple(bytes([number]) * 32 for number in range(1, 5))
TTL_MS = 60_000


def invited(books: Books, invite_id: str, node: str, ttl_ms: int = TTL_MS) -> Invite:
    return books.do(c.InviteNode(Invite(invite_id, invite_id.encode() * 4, node, 0, 0, "ann"), ttl_ms)).outcome


def joining(invite: Invite, node_id: str, key: bytes, name: str = "") -> c.JoinNode:
    return c.JoinNode(invite.invite_id, invite.sha256, node_id, name or node_id, key)


class EnrolmentMachine(BooksMachine):
    """A few nodes, keys and invites, and a model of what may come of them."""

    def __init__(self) -> None:
        super().__init__(CoreConfig(), ())
        self.invites: list[Invite] = []
        self.joined: dict[str, tuple[str, bytes]] = {}
        """By invite: the node and the key that came with it."""

    @rule(node=st.sampled_from(NODES + NAMES), ttl_ms=st.integers(1, TTL_MS))
    def invite(self, node: str, ttl_ms: int) -> None:
        self.invites.append(invited(self.books, f"i{len(self.invites)}", node, ttl_ms))

    @rule(
        pick=st.integers(0, 30),
        node=st.integers(0, 2),
        key=st.sampled_from(KEYS),
        forged=st.sampled_from([False, False, False, True]),
    )
    def join(self, pick: int, node: int, key: bytes, forged: bool) -> None:
        if not self.invites:
            return
        invite, node_id = self.invites[pick % len(self.invites)], NODES[node]
        command = joining(invite, node_id, key, NAMES[node])
        if forged:
            command = c.JoinNode(invite.invite_id, bytes(32), node_id, NAMES[node], key)
        before = self.joined.get(invite.invite_id)
        if self.refused(command):
            return
        assert not forged
        assert invite.node in (node_id, NAMES[node]), "for this node"
        assert before in (None, (node_id, key)), "once"
        assert before is not None or self.books.now_ms < invite.expires_ms, "in time"
        self.joined[invite.invite_id] = (node_id, key)
        assert self.books.state.enrolment.enrolled[node_id].key_sha256 == key

    @rule(node=st.sampled_from(NODES))
    def disenrol(self, node: str) -> None:
        if not self.refused(c.DisenrolNode(node)):
            assert node not in self.books.state.enrolment.enrolled

    @rule(ms=st.sampled_from([1, TTL_MS // 3, TTL_MS, INVITE_KEPT_MS]))
    def wait(self, ms: int) -> None:
        self.books.advance(ms)

    @invariant()
    def what_is_over_is_forgotten_in_the_end(self) -> None:
        kept = self.books.state.enrolment.invites
        assert all(invite.forgotten_ms >= self.books.now_ms - TTL_MS for invite in kept.values())
        assert set(self.books.state.enrolment.enrolled) <= set(NODES)


TestEnrolment = EnrolmentMachine.TestCase
TestEnrolment.settings = walks(40, 30)


def test_what_came_after_a_used_invite_does_not_bring_the_old_key_back() -> None:
    """Its answer may be lost once; after another join, or when the node was taken out, the invite is used up."""
    books = Books()
    first = invited(books, "i1", "n-1")
    books.do(joining(first, "n-1", KEYS[0]))
    books.do(joining(first, "n-1", KEYS[0]))
    books.do(c.DisenrolNode("n-1"))
    with pytest.raises(InviteUsedUp):
        books.do(joining(first, "n-1", KEYS[0]))
    books.do(joining(invited(books, "i2", "n-1"), "n-1", KEYS[1]))
    with pytest.raises(InviteUsedUp):
        books.do(joining(first, "n-1", KEYS[0]))


def test_a_snapshot_keeps_invites_and_keys() -> None:
    books = Books()
    open_one = invited(books, "i1", "n-1")
    books.do(joining(invited(books, "i2", "n-2"), "n-2", KEYS[1]))
    restored = from_snapshot(to_snapshot(books.state))
    assert state_hash(restored) == state_hash(books.state)
    assert restored.enrolment.invites["i1"] == open_one
    assert restored.enrolment.enrolled == books.state.enrolment.enrolled


def test_every_end_has_its_own_reason() -> None:
    books = Books()
    invite = invited(books, "i1", "n-1", ttl_ms=1_000)
    books.advance(1_000)
    with pytest.raises(InviteExpired, match="ended 0 s ago"):
        books.do(joining(invite, "n-1", KEYS[0]))
    books.advance(INVITE_KEPT_MS)
    with pytest.raises(InviteUnknown):
        books.do(joining(invite, "n-1", KEYS[0]))


def test_bounds_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "INVITES_MAX", 2)
    monkeypatch.setattr(records, "ENROLLED_MAX", 1)
    books = Books()
    several = [invited(books, f"i{number}", f"n-{number}") for number in range(2)]
    with pytest.raises(InvalidField, match="2 invites"):
        invited(books, "i9", "n-9")
    books.do(joining(several[0], "n-0", KEYS[0]))
    with pytest.raises(InvalidField, match="1 nodes have joined"):
        books.do(joining(several[1], "n-1", KEYS[1]))
    monkeypatch.setattr(records, "INVITES_MAX", 9)
    for wrong_ms in (-1, 0, records.INVITE_TTL_MAX_MS + 1):
        with pytest.raises(InvalidField, match="ttl_ms"):
            invited(books, "i3", "n-3", ttl_ms=wrong_ms)
    for right_ms in (1, records.INVITE_TTL_MAX_MS):
        made = invited(books, f"i{right_ms}", "n-3", ttl_ms=right_ms)
        assert made.expires_ms - made.created_ms == right_ms


@pytest.mark.parametrize(("nodes", "more"), [(1, ""), (5, ""), (6, " and 1 more"), (8, " and 3 more")])
def test_who_still_trusts_an_old_authority_is_named_and_those_beyond_five_are_counted(nodes: int, more: str) -> None:
    books = Books()
    for number in range(nodes):
        node_id = f"n-{number}"
        books.do(joining(invited(books, f"i-{number}", node_id), node_id, bytes([number + 1]) * 32))
    books.do(c.RotateAuthority(bytes([1]) * 32, "ann"))
    with pytest.raises(AuthorityInUse) as refused:
        books.do(c.RetireAuthority())
    assert refused.value.message.startswith(f"{nodes} still trust only generation")
    assert refused.value.message.count("node n-") == min(nodes, 5)
    assert refused.value.message.endswith(more or "node n-4" if nodes > 4 else "node n-0")


def test_what_a_node_or_a_person_trusts_is_put_down_where_it_is_news() -> None:
    books = Books()
    for number in (1, 2):
        books.do(joining(invited(books, f"i-{number}", f"n-{number}"), f"n-{number}", KEYS[number]))
    assert books.do(c.RotateAuthority(bytes([1]) * 32, "ann")).outcome == 2

    def facts(number: int, node_id: str) -> int:
        return len(books.do(c.NoteTrust(number, node_id)).facts)

    assert [facts(number, "n-1") for number in (-1, 0, 3)] == [0, 0, 0], "no generation has these numbers"
    assert facts(2, "nobody") == 0
    assert facts(1, "n-1") == 0, "it is known"
    assert facts(2, "n-1") == 1
    assert facts(2, "n-1") == 0, "it is known by now"
    known = books.state.enrolment
    assert [each.node_id for each in behind(known.enrolled.values(), (), known.newest, books.now_ms)] == ["n-2"]
    with pytest.raises(AuthorityInUse, match="1 still trust only generation 1"):
        books.do(c.RetireAuthority())
    with pytest.raises(AuthorityUnchanged, match="generation 2 of the pool's authority is being taken up"):
        books.do(c.RotateAuthority(bytes([2]) * 32, "ann"))
    assert books.do(c.RetireAuthority(force=True)).outcome == 2
    assert [each.number for each in trusted(books.state.enrolment.generations)] == [2]
    with pytest.raises(AuthorityUnchanged, match="generation 2 of the pool's authority is the only one"):
        books.do(c.RetireAuthority())
    for size in (0, records.SALT_BYTES - 1, records.SALT_BYTES + 1):
        with pytest.raises(InvalidField, match="salt"):
            books.do(c.RotateAuthority(bytes(size), "ann"))
