"""Leases over REST."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.conftest import Site


async def test_a_lease_from_the_request_to_its_end(site: Site) -> None:
    async with site.browse("user") as http:
        made = await http.post("/leases", json={"request": {"gpu": "0.25,10Gi", "tenant": "vision", "detached": True}})
        assert made.status_code == 201
        lease = made.json()
        assert made.headers["Location"] == f"/api/v1/leases/{lease['lease_id']}"
        assert lease["state"] == "GRANTED"
        assert lease["secret"]
        seen = await http.get(f"/leases/{lease['lease_id']}")
        assert "secret" not in seen.json()
        assert seen.json()["slices"][0]["share_milli"] == 250
        listed = (await http.get("/leases", params={"tenant": "vision"})).json()
        assert [each["lease_id"] for each in listed["items"]] == [lease["lease_id"]]
        ended = await http.post(f"/leases/{lease['lease_id']}:release", json={"reason": "done"})
        assert ended.json()["state"] in {"RELEASING", "ENDED"}
        again = await http.post(f"/leases/{lease['lease_id']}:release")
        assert again.status_code == 200


async def test_asking_twice_with_one_key_gives_one_lease(site: Site) -> None:
    body = {"request": {"gpu": "0.25", "tenant": "vision", "detached": True}}
    async with site.browse("user") as http:
        first, second = [(await http.post("/leases", json=body, headers={"Idempotency-Key": "k-1"})) for _ in range(2)]
        assert first.json()["lease_id"] == second.json()["lease_id"]
        body["request"]["gpu"] = "0.5"
        other = await http.post("/leases", json=body, headers={"Idempotency-Key": "k-1"})
    assert (other.status_code, other.json()["reason"]) == (409, "IDEMPOTENCY_MISMATCH")


async def test_what_has_not_changed_is_not_sent_again(site: Site) -> None:
    lease = await site.ask("user", tenant="vision")
    async with site.browse("user") as http:
        tag = (await http.get(f"/leases/{lease['lease_id']}")).headers["ETag"]
        same = await http.get(f"/leases/{lease['lease_id']}", headers={"If-None-Match": tag})
        assert (same.status_code, same.content) == (304, b"")
        await http.post(f"/leases/{lease['lease_id']}:release")
        other = await http.get(f"/leases/{lease['lease_id']}", headers={"If-None-Match": tag})
        assert other.status_code == 200


async def test_pages_have_everything_once(site: Site) -> None:
    asked = [(await site.ask("user", "0.1", tenant="vision"))["lease_id"] for _ in range(5)]
    found, token = [], ""
    async with site.browse("user") as http:
        while True:
            page = (await http.get("/leases", params={"page_size": 2, "page_token": token})).json()
            found += [lease["lease_id"] for lease in page["items"]]
            token = page["next_token"]
            if not token:
                break
    assert found == asked


async def test_a_request_that_can_never_fit_says_what_would(site: Site) -> None:
    async with site.browse("user") as http:
        refused = await http.post("/leases", json={"request": {"gpu": "16", "tenant": "vision"}})
        asked = await http.post("/leases:explain", json={"gpu": "16", "tenant": "vision"})
    problem = refused.json()
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "urn:aliquot:NEVER_FITS"
    assert problem["hint"]
    assert problem["smallest_change"]
    assert asked.json()["impossible"]


async def test_places_that_the_caller_decides(site: Site) -> None:
    body: Any = {"request": {"gpu": "1", "tenant": "vision", "detached": True}, "places": [{"node_id": "n1"}]}
    async with site.browse("user") as http:
        assert (await http.post("/leases", json=body)).json()["slices"][0]["node_id"] == "n1"
        body["places"] = [{"node_id": "n2"}]
        refused = await http.post("/leases", json=body)
    assert refused.status_code in {404, 409}


async def test_why_a_lease_waits(site: Site) -> None:
    await site.ask("user", "8", tenant="vision")
    async with site.browse("user") as http:
        body = {"request": {"gpu": "1", "tenant": "vision", "detached": True}, "until": "QUEUED"}
        waiting = (await http.post("/leases", json=body)).json()
        assert waiting["state"] == "QUEUED"
        why = (await http.get(f"/leases/{waiting['lease_id']}/explanation")).json()
    assert not why["fits_now"]
    assert why["summary"]
    assert why["instead"] is None, "nothing is free"


async def test_the_request_that_is_told_instead_is_a_request(site: Site) -> None:
    await site.ask("user", "4x0.75,1Gi", tenant="vision")
    await site.ask("user", "4", tenant="vision")
    async with site.browse("user") as http:
        why = (await http.post("/leases:explain", json={"gpu": "1", "tenant": "vision", "name": "mine"})).json()
        assert (why["fits_now"], why["instead"]["gpu"], why["instead"]["name"]) == (False, "0.25", "mine")
        body = {"request": why["instead"], "until": "QUEUED"}
        assert (await http.post("/leases", json=body)).json()["state"] != "QUEUED"


@pytest.mark.parametrize(
    ("body", "subject"),
    [
        ({"request": {"gpu": "1", "tennant": "vision"}}, "tennant"),
        ({"request": {}}, "gpu"),
        ({"request": {"gpu": 1}}, "gpu"),
        ({"request": {"gpu": "1"}, "wait_s": -1}, "wait_s"),
        ({"request": {"gpu": "1", "serve": "NEARBY"}}, "serve"),
    ],
)
async def test_a_body_that_is_no_request_names_the_field(site: Site, body: Any, subject: str) -> None:
    async with site.browse("user") as http:
        refused = await http.post("/leases", json=body)
    assert refused.status_code == 400
    assert any(subject in each["subject"] for each in refused.json()["violations"])


async def test_a_text_that_can_not_be_read_and_a_lease_that_is_not_there(site: Site) -> None:
    async with site.browse("user") as http:
        unread = await http.post("/leases:explain", json={"gpu": "half of one", "tenant": "vision"})
        missing = await http.get("/leases/l-nothing")
        no_path = await http.get("/leases/l-nothing/else")
        no_page = await http.get("/leases", params={"page_token": "?"})
    assert (unread.status_code, unread.json()["reason"]) == (400, "REQUEST_SYNTAX")
    assert (missing.status_code, missing.json()["reason"]) == (404, "LEASE_NOT_FOUND")
    assert no_path.status_code == 404
    assert no_page.status_code == 400


async def test_names_in_any_script_come_back_as_they_were(site: Site) -> None:
    name = "<b>ψ</b> 🧪 \u05e9\u05dc\u05d5\u05dd"
    lease = await site.ask("user", tenant="vision", name=name)
    async with site.browse("user") as http:
        assert (await http.get(f"/leases/{lease['lease_id']}")).json()["name"] == name


async def test_a_time_limit_is_extended_by_whoever_holds_it(site: Site) -> None:
    lease = await site.ask("user", tenant="vision", time_limit_s=3600)
    path = f"/leases/{lease['lease_id']}:extend"
    async with site.browse("user") as http:
        longer = (await http.post(path, json={"time_limit_s": 7200, "reason": "it converges"})).json()
        assert (longer["time_limit_s"], longer["ends_ms"]) == (7200, lease["granted_ms"] + 7_200_000)
        late = await http.post(path, json={"time_limit_s": 9000}, headers={"If-Match": f'"{lease["seq"]}"'})
        assert late.status_code == 412
        shorter = await http.post(path, json={"time_limit_s": 60})
        assert shorter.status_code == 400
    async with site.browse("viewer") as http:
        assert (await http.post(path, json={"time_limit_s": 9000})).status_code == 403


async def test_what_is_held_for_nothing_and_who_may_for_a_while(site: Site) -> None:
    lease = await site.ask("user", tenant="vision")
    async with site.browse("user") as http:
        report = (await http.get("/use", params={"tenant": "vision"})).json()
        assert [row["lease"]["lease_id"] for row in report["rows"]] == [lease["lease_id"]]
        assert (await http.get("/use", params={"quiet_only": True})).json()["rows"] == []
        exempt = await http.post(f"/leases/{lease['lease_id']}:exempt", json={"for_s": 3600, "reason": "lunch"})
        assert exempt.json()["use"]["exempt_reason"] == "lunch"


@pytest.mark.parametrize("text", ["exp[lr=0.1]", "train [/] eval", "[link=http://x]y[/link]", ":smile: {0} %s \\n"])
async def test_words_of_people_are_text(site: Site, text: str) -> None:
    lease = await site.ask("user", tenant="vision", name=text)
    async with site.browse("user") as http, site.browse("operator") as operator:
        shown = (await http.get(f"/leases/{lease['lease_id']}")).json()
        assert shown["name"] == text
        body = {"request": {"gpu": "0.25", "tenant": "vision", "labels": {"what": text}}}
        refused = (await http.post("/leases", json=body)).json()
        assert repr(text) in refused["detail"]
        assert (await operator.post("/nodes/n1:cordon", json={"reason": text})).json()["reason"] == text
        assert text in {each["reason"] for each in (await http.get("/nodes")).json()["items"]}
        await operator.post("/nodes/n1:uncordon")
