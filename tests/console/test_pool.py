"""The rest of REST: nodes, tenants, money, maintenance, roles, and the routes of an earlier API."""

from __future__ import annotations

from tests.console.conftest import Site


async def test_nodes_and_devices(site: Site) -> None:
    async with site.browse("operator") as http:
        declared = await http.put("/nodes", json=[{"name": "n2", "devices": [{"model": "H100-80"}], "agentless": True}])
        assert declared.json()[0]["node_id"] == "n2"
        page = (await http.get("/nodes", params={"page_size": 1, "devices": True})).json()
        assert len(page["items"]) == 1
        assert page["items"][0]["devices"]
        assert page["next_token"]
        devices = (await http.get("/devices", params={"model": "H100-80"})).json()["items"]
        assert [device["node_id"] for device in devices] == ["n2"]
        fits = (await http.post("/nodes:fits", json={"request": {"gpu": "1(H100)"}, "node_ids": ["n1", "n2"]})).json()
        assert [fit["score"] > 0 for fit in fits] == [False, True]
        assert (await http.post("/nodes/n2:cordon", json={"reason": "fans"})).json()["reason"] == "fans"
        assert not (await http.post("/nodes/n2:uncordon")).json()["cordoned"]
        assert (await http.post("/nodes/n2:drain")).json()["draining"]
        assert (await http.delete("/nodes/n2")).status_code == 204
        assert (await http.get("/nodes/n2")).status_code == 404
        assert (await http.get("/status")).json()["pools"][0]["devices"] == 8


async def test_declarations_and_bills(site: Site) -> None:
    declared = {
        "tenants": [{"name": "vision", "quota": {"limit": {"share_milli": 2000}}}],
        "rates": {"currency": "EUR", "rates": [{"model": "*", "gpu_hour_micro": 1000}]},
    }
    async with site.browse("admin") as http:
        planned = (await http.put("/tenancy", params={"dry_run": True}, json=declared)).json()
        assert "tenant vision" in planned["changed"]
        assert (await http.put("/tenancy", json=declared)).json()["changed"] == planned["changed"]
        view = (await http.get("/tenancy")).json()
        limits = {tenant["spec"]["name"]: tenant["spec"]["quota"]["limit"] for tenant in view["tenants"]}
        assert limits["vision"]["share_milli"] == 2000
        invoice = (await http.get("/invoices/vision", params={"from_ms": 0, "to_ms": 86_400_000})).json()
        assert invoice["total_micro"] == "0"  # unbounded sums are strings
        credit = {"money_micro": 5, "reference": "r1"}
        assert (await http.post("/credits/vision", json=credit)).json() == {"balance_micro": "5"}
        assert (await http.delete("/tenancy/tenant/vision")).status_code == 204
        wrong = await http.put("/tenancy", json={"tenants": [{"name": "vision", "limits": {}}]})
        assert wrong.status_code == 400
        assert "limits" in wrong.text


async def test_maintenance(site: Site) -> None:
    window = {"name": "w", "start": "2027-01-01T00:00", "end": "2027-01-01T01:00", "node_ids": ["n1"]}
    async with site.browse("operator") as http:
        assert (await http.put("/maintenance", json=window)).json()["phase"] == "PLANNED"
        assert [each["window"]["name"] for each in (await http.get("/maintenance")).json()] == ["w"]
        assert (await http.delete("/maintenance/w")).status_code == 204


async def test_roles_and_tokens(site: Site) -> None:
    async with site.browse("admin") as http:
        given = await http.put("/grants", json={"principal": "ann", "role": "USER", "scope": "vision"})
        assert given.json()["grants"] == [{"role": "USER", "scope": "vision"}]
        issued = await http.post("/tokens", json={"principal": "ann", "note": "laptop"})
        assert issued.status_code == 201
        ann = {"Authorization": f"Bearer {issued.json()['token']}"}
        assert (await http.get("/whoami", headers=ann)).json()["principal"] == "ann"
        token_id = issued.json()["issued"]["token_id"]
        assert [each["token_id"] for each in (await http.delete(f"/tokens/{token_id}")).json()] == [token_id]
        assert (await http.get("/whoami", headers=ann)).status_code == 401
        taken = await http.delete("/grants", params={"principal": "ann", "role": "USER", "scope": "vision"})
        assert taken.json()["grants"] == []
        audit = (await http.get("/audit", params={"entries": 5})).json()["entries"]
        assert {entry["action"] for entry in audit} >= {"IssueToken", "GrantRole", "RevokeTokens"}


async def test_what_everybody_is_told(site: Site) -> None:
    async with site.browse(base="http://localhost") as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get("/api/v1/login")).json()["issuer"] == ""
        openapi = (await http.get("/api/v1/openapi.json")).json()
        assert openapi["openapi"].startswith("3.1")
        stranger = await http.get("/api/v1/leases")
        assert (stranger.status_code, stranger.json()["reason"]) == (401, "TOKEN_MISSING")
        assert stranger.headers["WWW-Authenticate"] == "Bearer"


async def test_without_a_coordinator_it_is_alive_and_not_ready(site: Site) -> None:
    site.pool.coordinator.stop()
    async with site.browse(base="http://localhost") as http:
        assert (await http.get("/healthz")).status_code == 200
        away = await http.get("/readyz")
    assert away.status_code == 503


async def test_routes_of_an_earlier_api(site: Site) -> None:
    pod = {"pod_name": "train-0", "gpu_requirement": 0.5, "memory_requirement": "10Gi"}
    async with site.browse("admin") as http:
        placed = await http.post("/schedule", json=pod)
        assert placed.status_code == 201
        assert (placed.json()["status"], placed.json()["data"]["node"]) == ("success", "n1")
        assert "/api/v1/leases" in placed.headers["Link"]
        assert placed.headers["Deprecation"]
        # Nobody keeps it alive, so it ends by itself.
        lease = (await http.get(f"/leases/{placed.json()['data']['lease_id']}")).json()
        assert lease["time_limit_s"] == 3600, lease
        in_gb = await http.post("/schedule", json=pod | {"memory_requirement": 2.5, "time_limit_s": 60})
        lease = (await http.get(f"/leases/{in_gb.json()['data']['lease_id']}")).json()
        assert (lease["gpu"], lease["time_limit_s"]) == ("0.5,2.5G", 60)
        metrics = (await http.get("/gpu/metrics", params={"node": "n1"})).json()
        assert len(metrics["data"]) == 8
        assert (await http.get("/cluster/status")).json()["data"]["pending_requests"] == 0
        for gone in (await http.get("/trends", params={"hours": 24}), await http.get("/dashboard/config")):
            assert (gone.status_code, gone.json()["reason"]) == (501, "SERVED_ELSEWHERE")
        hpa = await http.post("/hpa", json={"deployment_name": "d", "min_replicas": 1})
        assert hpa.status_code == 501
        assert "HorizontalPodAutoscaler" in hpa.json()["hint"]


async def test_windows_of_quotas_and_what_is_in_force(site: Site) -> None:
    window = {"when": "daily Europe/Zurich", "limit": {"share_milli": 1000}}
    declared = {"tenants": [{"name": "vision", "quota": {"limit": {"share_milli": 2000}, "windows": [window]}}]}
    async with site.browse("admin") as http:
        assert (await http.put("/tenancy", json=declared)).status_code == 200
        view = next(each for each in (await http.get("/tenancy")).json()["tenants"] if each["spec"]["name"] == "vision")
        assert view["use"]["windows"]["in_force"]["limit"]["share_milli"] == 1000
        assert view["use"]["windows"]["window"] == "daily Europe/Zurich"
        # What was read can be sent again.
        again = await http.put("/tenancy", json={"tenants": [view["spec"]]})
        assert again.json()["unchanged"] == ["tenant vision"]
        window["when"] = "daily Europe/Zuerich"
        wrong = await http.put("/tenancy", json=declared)
        assert wrong.status_code == 400
        assert "Europe/Zuerich" in wrong.text


async def test_a_forecast_is_for_those_who_may_see_it(site: Site) -> None:
    async with site.browse("operator") as http:
        young = (await http.get("/forecast")).json()
        assert (young["from_ms"], young["series"]) == (0, [])
        assert (await http.get("/forecast", params={"series": "tenant/vision"})).status_code == 200
        assert (await http.get("/forecast", params={"series": "cat/vision"})).status_code == 400
    async with site.browse() as http:
        assert (await http.get("/forecast")).status_code == 401
