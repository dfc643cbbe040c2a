"""One leads: whoever can't renew stops by its own clock, and the next one has a higher epoch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.election import Election, LeadershipLost
from aliquot.kube.api.resources import LEASES
from tests.coordinator.pool import eventually
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with fake_api() as api:
        yield api


def candidate(client: KubeClient, name: str, duration_s: int = 1) -> Election:
    return Election(client, "default", "one", name, duration_s=duration_s)


async def test_one_takes_it_and_the_next_follows_when_it_is_given_up(api: FakeApi) -> None:
    async with KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        first, second = candidate(client, "a", 60), candidate(client, "b", 60)
        assert await first.try_take()
        assert (first.epoch, first.leads) == (1, True)
        assert not await second.try_take()
        await first.give_up()
        assert not first.leads
        assert await second.try_take()
        assert second.epoch == 2
        lease = msgspec.json.decode(await client.get(LEASES.path("default", "one")))
        assert lease["spec"]["holderIdentity"] == "b"


async def test_a_holder_that_died_is_succeeded_after_its_whole_duration(api: FakeApi) -> None:
    async with KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        first, second = candidate(client, "a"), candidate(client, "b")
        await eventually(first.try_take, "the Lease")  # a call has a third of a second, and the machine may be slow
        assert not await second.try_take()
        await eventually(second.try_take, "its expiry")
        assert second.epoch == first.epoch + 1
        assert not first.leads


async def test_a_leader_renews_as_long_as_it_works(api: FakeApi) -> None:
    async with KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        election, other = candidate(client, "a"), candidate(client, "b")
        renewed = asyncio.Event()

        async def lead(epoch: int) -> None:
            assert epoch == 1
            puts = [call for call in api.calls if call[0] == "PUT"]
            while len(puts) < 8:  # longer than the Lease lasts by itself
                await asyncio.sleep(0.05)
                assert not await other.try_take()
                puts = [call for call in api.calls if call[0] == "PUT"]
            renewed.set()

        await election.run(lead)
        assert renewed.is_set()
        assert await other.try_take(), "it was given up at the end"


async def test_with_the_server_frozen_the_leader_stops_by_its_own_clock(api: FakeApi) -> None:
    async with KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        election = candidate(client, "a")
        stopped = asyncio.Event()

        async def lead(_: int) -> None:
            api.faults.frozen.clear()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        with pytest.raises(LeadershipLost, match="could not be renewed"):
            await election.run(lead)
        assert stopped.is_set()
        api.faults.frozen.set()


async def test_a_lease_that_another_has_taken_is_lost(api: FakeApi) -> None:
    async with KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        election = candidate(client, "a")

        async def lead(_: int) -> None:
            kind = api.store.kind("coordination.k8s.io/v1", "leases")
            old = kind.items["default", "one"]
            spec = {**old["spec"], "holderIdentity": "thief"}
            api.store.write(
                kind, ("default", "one"), {**old, "spec": spec, "metadata": {**old["metadata"]}}, "MODIFIED"
            )
            await asyncio.Event().wait()

        with pytest.raises(LeadershipLost, match="another"):
            await election.run(lead)


async def test_a_label_on_the_lease_loses_nothing(api: FakeApi) -> None:
    async with KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        election = candidate(client, "a")

        async def lead(_: int) -> None:
            await client.patch(LEASES.path("default", "one"), {"metadata": {"labels": {"a": "b"}}})
            puts = len([call for call in api.calls if call[0] == "PUT"])
            await eventually(lambda: len([c for c in api.calls if c[0] == "PUT"]) > puts + 8, "renewals")

        await election.run(lead)
