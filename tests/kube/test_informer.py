"""Following pods through everything that happens to watches: pages, breaks, 410, silence, 429, RBAC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.errors import KubeUnavailable
from aliquot.kube.api.informer import Informer
from aliquot.kube.core.pods import PodRecord, flatten
from aliquot.kube.core.shapes import RawPod
from tests.coordinator.pool import eventually
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api
from tests.kube.making import make_pod


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with fake_api(bookmark_s=0.05) as api:
        yield api


@contextlib.asynccontextmanager
async def following(api: FakeApi, token: str = ADMIN, **options: Any) -> AsyncIterator[Informer[RawPod, PodRecord]]:
    async with KubeClient(Cluster(api.url, lambda: token)) as client:
        informer: Informer[RawPod, PodRecord] = Informer(
            client, resources.PODS, RawPod, flatten, **{"silence_s": 5.0, **options}
        )
        running = asyncio.create_task(informer.run())
        try:
            yield informer
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def names(informer: Informer[RawPod, PodRecord]) -> set[str]:
    return {pod.name for pod in informer}


async def test_pages_and_changes_are_kept(api: FakeApi) -> None:
    for number in range(7):
        make_pod(api, f"p{number}")
    told: list[tuple[str, bool, bool]] = []
    async with following(
        api, page=2, on_change=lambda key, before, after: told.append((key, before is None, after is None))
    ) as informer:
        await informer.synced.wait()
        assert names(informer) == {f"p{number}" for number in range(7)}
        make_pod(api, "new")
        api.store.remove(api.pods, ("default", "p0"))
        await eventually(lambda: "new" in names(informer) and "p0" not in names(informer), "both changes")
        assert told[-2:] == [("default/new", True, False), ("default/p0", False, True)]


async def test_bookmarks_carry_the_version_on(api: FakeApi) -> None:
    async with following(api, fields="spec.nodeName=here") as informer:
        await informer.synced.wait()
        for number in range(3):
            make_pod(api, f"p{number}")  # not chosen
        await eventually(lambda: informer.version == str(api.store.version), "a bookmark")


async def test_what_was_deleted_behind_a_compaction_is_told(api: FakeApi) -> None:
    make_pod(api, "a")
    make_pod(api, "b")
    gone: list[str] = []
    async with following(
        api, on_change=lambda key, before, after: gone.append(key) if after is None else None
    ) as informer:
        await informer.synced.wait()
        api.faults.frozen.clear()
        api.drop_watches()
        await asyncio.sleep(0)
        api.store.remove(api.pods, ("default", "a"))
        make_pod(api, "c")
        api.store.compact()
        api.faults.frozen.set()
        await eventually(lambda: names(informer) == {"b", "c"}, "the list again")
        assert informer.relists == 1
        assert gone == ["default/a"]


async def test_a_page_that_expires_begins_the_list_again(api: FakeApi) -> None:
    for number in range(6):
        make_pod(api, f"p{number}")
    pages = 0
    list_one = api._list

    def expiring(*args: Any) -> bytes:
        nonlocal pages
        pages += 1
        if pages == 2:
            make_pod(api, "late")
            api.store.compact()
        return list_one(*args)

    api._list = expiring  # type: ignore[method-assign,assignment]
    async with following(api, page=4) as informer:
        await informer.synced.wait()
        assert len(informer) == 7


async def test_a_list_that_is_slower_than_the_servers_memory_comes_to_its_end(api: FakeApi) -> None:
    """Each page takes so long that the next has expired: page by page it would never be finished."""
    for number in range(40):
        make_pod(api, f"p{number:02d}")
    list_one = api._list

    def forgetting(*args: Any) -> bytes:
        answer = list_one(*args)
        make_pod(api, f"late-{len(api.pods.items)}")
        api.store.compact()
        return answer

    api._list = forgetting  # type: ignore[method-assign,assignment]
    async with following(api, page=2) as informer:
        await eventually(informer.synced.is_set, "the list's end")
        # The whole list in one piece is too old for a watch, too; a server is not busy for ever.
        assert len(informer) >= 40
        api._list = list_one  # type: ignore[method-assign]
        await eventually(lambda: len(informer) == len(api.pods.items), "what came meanwhile")
        make_pod(api, "then")
        await eventually(lambda: "then" in names(informer), "a change afterwards")


async def test_a_watch_that_is_half_open_is_noticed(api: FakeApi) -> None:
    async with following(api, silence_s=0.3) as informer:
        await informer.synced.wait()
        assert informer.trustworthy
        api.faults.silent = True
        make_pod(api, "unheard")
        await eventually(lambda: not informer.trustworthy, "staleness")
        assert "unheard" not in names(informer)
        api.faults.silent = False
        await eventually(lambda: "unheard" in names(informer) and informer.trustworthy, "the change, late")


async def test_a_server_that_says_later_is_asked_later(api: FakeApi) -> None:
    api.faults.later = [(429, "0"), (503, "0"), (429, "0")]
    make_pod(api, "a")
    async with following(api) as informer:
        await informer.synced.wait()
        assert names(informer) == {"a"}


async def test_a_verb_that_is_missing_is_one_clear_error(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    api.tokens["weak"] = "system:serviceaccount:aliquot:extender"
    api.faults.forbidden.add(("list", "pods"))
    async with following(api, token="weak") as informer:
        calls = len(api.calls)
        await eventually(lambda: len(api.calls) >= calls + 3, "several tries")
        assert 'cannot list resource "pods"' in informer.problem
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1
        assert "aliquot kube doctor" in errors[0].message
        api.faults.forbidden.clear()
        await informer.synced.wait()
        assert informer.problem == ""


async def test_a_call_to_a_frozen_server_ends(api: FakeApi) -> None:
    api.faults.frozen.clear()
    async with KubeClient(Cluster(api.url, lambda: ADMIN), timeout_s=0.2) as client:
        with pytest.raises(KubeUnavailable, match="no answer within"):
            await client.get("/version")
