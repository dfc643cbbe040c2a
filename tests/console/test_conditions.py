"""Reads of what is known already, of some fields only, and changes of what is no longer as it was."""

from __future__ import annotations

import pytest

from tests.console.conftest import Site


@pytest.mark.parametrize("path", ["/nodes", "/devices", "/leases", "/status", "/tenancy"])
async def test_what_is_known_is_not_sent_again(site: Site, path: str) -> None:
    async with site.browse("operator") as http:
        first = await http.get(path)
        tag = first.headers["ETag"]
        again = await http.get(path, headers={"If-None-Match": f'"x", {tag}'})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
        other = await http.get(path, headers={"If-None-Match": '"x"'})
        assert (other.status_code, other.json()) == (200, first.json())


async def test_what_has_changed_has_another_tag(site: Site) -> None:
    async with site.browse("operator") as http:
        tag = (await http.get("/nodes")).headers["ETag"]
        await http.post("/nodes/n1:cordon", json={"reason": "fans"})
        assert (await http.get("/nodes", headers={"If-None-Match": tag})).status_code == 200


async def test_items_of_a_list_have_the_fields_that_are_asked_for(site: Site) -> None:
    lease = await site.ask("user", tenant="vision")
    async with site.browse("user") as http:
        items = (await http.get("/leases", params={"fields": "state,lease_id"})).json()["items"]
        assert items == [{"state": lease["state"], "lease_id": lease["lease_id"]}]
        assert set((await http.get("/devices?fields=uuid")).json()["items"][0]) == {"uuid"}
        assert set((await http.get("/nodes?fields=name")).json()["items"][0]) == {"name"}
        refused = await http.get("/nodes?fields=nam")
        assert (refused.status_code, refused.json()["reason"]) == (400, "INVALID_FIELD")
        assert "name" in refused.json()["hint"]


async def test_a_lease_that_has_changed_meanwhile_is_not_released(site: Site) -> None:
    lease = await site.ask("user", tenant="vision")
    path = f"/leases/{lease['lease_id']}"
    async with site.browse("user") as http:
        tag = (await http.get(path)).headers["ETag"]
        stale = await http.post(f"{path}:release", headers={"If-Match": '"1"'})
        assert (stale.status_code, stale.json()["reason"]) == (412, "CHANGED_MEANWHILE")
        assert (await http.get(path)).json()["state"] == lease["state"]
        assert (await http.post(f"{path}:release", headers={"If-Match": f'"1", {tag}'})).status_code == 200
        assert (await http.post(f"{path}:release", headers={"If-Match": tag})).status_code == 412
        assert (await http.post(f"{path}:release", headers={"If-Match": "*"})).status_code == 200
