"""A credential counts as a whole: whoever has most of one, or a half each of two, has none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aliquot.common.tokens import CHARS_MAX, bearer
from aliquot.coordinator.core.books.roles import Action
from aliquot.coordinator.core.values.errors import InviteUnknown
from aliquot.coordinator.errors import Unauthenticated
from aliquot.v1 import enrolment_pb2, enrolment_pb2_grpc, leases_pb2
from tests.access.people import introduce
from tests.coordinator.pool import running, settings_for

REFUSED = (Unauthenticated, InviteUnknown)


def nearly(text: str) -> Iterator[str]:
    """The same but for one character, at each place."""
    for at, character in enumerate(text):
        yield text[:at] + ("1" if character != "1" else "2") + text[at + 1 :]
        yield text[:at] + text[at + 1 :]
        yield text[:at] + character + text[at:]


async def test_no_kind_of_credential_is_taken_with_one_character_wrong_nor_with_the_secret_of_another() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        workloads = [(await people.workload())[0].token for _ in range(2)]
        enrolment = people.admin.stub(enrolment_pb2_grpc.EnrolmentServiceStub)
        request = enrolment_pb2.InviteNodeRequest(node="n9")
        invites = [(await enrolment.InviteNode(request)).invite for _ in range(2)]
        persons = [people["user"].token, people.admin.token]
        find = pool.leading.door.authenticator.find
        for mine, another in (persons, workloads, invites):
            assert find([bearer(mine)]) != find([bearer(another)])
            halves = [mine.rpartition("_")[0] + "_" + another.rpartition("_")[2]]
            for forged in (*nearly(mine), *halves, mine.upper(), f"{mine} {another}", mine * 2):
                with pytest.raises(REFUSED):
                    find([bearer(forged)])


async def test_what_carries_no_token_names_nobody() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        find = pool.leading.door.authenticator.find
        key, value = bearer(people["user"].token)
        who = find([("another", value), (key, value)])
        assert who.principal == "user"
        assert find([(key, value), (key, bearer(people.admin.token)[1])]) == who, "the first one counts"
        for metadata in (
            [],
            [("another", value)],
            [(key, "")],
            [(key, value.encode())],
            [(key, value.replace("Bearer", "Basic"))],
            [(key, value.removeprefix("Bearer "))],
            [(key, value + "0" * CHARS_MAX)],
        ):
            with pytest.raises(Unauthenticated):
                find(metadata)


async def test_a_token_answers_for_an_action_as_a_whole_and_as_long_as_it_lives() -> None:
    """What `/metrics` asks, outside of any call."""
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        may = pool.leading.door.authenticator.may
        text = people["metrics"].token
        assert may(text, Action.SCRAPE)
        assert not may(text, Action.AUDIT)
        assert not may(people["user"].token, Action.SCRAPE)
        assert not any(may(forged, Action.SCRAPE) for forged in (*nearly(text), "", "alq_"))


async def test_a_leases_token_ends_with_it() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        workload, lease_id = await people.workload()
        find = pool.leading.door.authenticator.find
        assert find([bearer(workload.token)]).lease_id == lease_id
        await people.admin.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease_id))
        with pytest.raises(Unauthenticated, match="has ended"):
            find([bearer(workload.token)])
