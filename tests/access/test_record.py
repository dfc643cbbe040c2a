"""The record of who did what: nobody pushes out what others did, however much they do."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.client import AsyncPool
from aliquot.common.limits import MAX_NAME_CHARS
from aliquot.coordinator.core.books import access as records
from aliquot.coordinator.core.books.access import AuditEntry, AuditRecord
from aliquot.coordinator.reading import callers
from aliquot.v1 import access_pb2
from tests.access.people import introduce
from tests.coordinator.pool import running, settings_for


def entry(number: int, principal: str) -> AuditEntry:
    return AuditEntry(number, number, principal, "", "", "Cordon", "n1")


@given(st.lists(st.sampled_from("abcde"), max_size=200), st.integers(1, 80), st.integers(0, 200))
def test_beyond_a_share_ones_own_goes_and_else_the_oldest_of_who_has_most(
    names: list[str], most: int, saved_at: int
) -> None:
    record = AuditRecord(most)
    kept: list[AuditEntry] = []
    for number, name in enumerate(names):
        if number == saved_at:  # as a snapshot has it
            again = AuditRecord(most)
            again.extend(record)
            record = again
        record.append(entry(number, name))
        kept.append(entry(number, name))
        if len(kept) > most:
            counts = Counter(each.principal for each in kept)
            largest = {each for each in counts if counts[each] == max(counts.values())}
            whose = {name} if counts[name] > most // 20 else largest
            kept.remove(next(each for each in kept if each.principal in whose))
    assert list(record) == kept
    assert list(reversed(record)) == kept[::-1]
    assert len(record) == len(kept)


async def test_a_callers_storm_pushes_out_its_own_acts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (records, callers):
        monkeypatch.setattr(module, "AUDIT_MAX", 40)
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        before = (await people.admin.access.ListAudit(access_pb2.ListAuditRequest(page_size=100))).entries
        assert before
        async with AsyncPool(pool.address, token=people["viewer"].token) as viewer:
            for _ in range(50):
                await viewer.access.revoke_tokens([(await viewer.access.issue_token()).issued.token_id])
        after = (await people.admin.access.ListAudit(access_pb2.ListAuditRequest(page_size=100))).entries
        assert len(after) == 40
        # But for one, as far as its share of the record goes.
        assert [each for each in after if each.principal != "viewer"][: len(before)] == list(before)
        assert after[0].action == "RevokeTokens", "the latest of the storm are there"


async def test_the_record_names_what_was_acted_upon_as_far_as_there_is_room() -> None:
    """The whole of the longest name, or the first three of many tokens."""
    longest = "p" * MAX_NAME_CHARS
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        access = people.admin.access
        grant = access_pb2.RoleGrant(role=access_pb2.VIEWER)
        await access.GrantRole(access_pb2.GrantRoleRequest(principal=longest, grant=grant))
        issued = await access.IssueToken(access_pb2.IssueTokenRequest(principal=longest))
        await access.RevokeTokens(access_pb2.RevokeTokensRequest(principal=longest))
        several = [await access.IssueToken(access_pb2.IssueTokenRequest(principal="viewer")) for _ in range(4)]
        ids = [each.issued.token_id for each in several]
        await access.RevokeTokens(access_pb2.RevokeTokensRequest(token_ids=ids))
        await access.RevokeRole(access_pb2.RevokeRoleRequest(principal=longest, grant=grant))
        entries = (await access.ListAudit(access_pb2.ListAuditRequest(page_size=100))).entries
        subjects = {(each.action, each.subject) for each in entries}
    assert {
        ("IssueToken", f"{longest}: token {issued.issued.token_id}"),
        ("RevokeTokens", longest),
        ("RevokeTokens", ", ".join(ids[:3])),
    } <= subjects
    (given,) = [subject for action, subject in subjects if action == "GrantRole" and longest in subject]
    assert ("RevokeRole", given) in subjects
