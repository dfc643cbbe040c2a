"""Every role on every route: what the table of the contract's methods allows, and nothing else.

Beside it whatever the OpenAPI document allows is asked, as every role: no answer is a failure of the server.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings

from tests.access.people import GRANTS
from tests.access.test_matrix import EXPECTED
from tests.console.conftest import Site, served

REQUEST = {"gpu": "0.001,1Mi", "tenant": "vision", "detached": True}
ROUTES: list[tuple[str, str, str, Any]] = [
    # the method behind it, then how it is called about the tenant `vision` and a lease of its administrator's
    ("LeaseService.List", "GET", "/leases?tenant=vision", None),
    ("LeaseService.Allocate", "POST", "/leases", {"request": REQUEST, "until": "QUEUED"}),
    ("LeaseService.GrantOn", "POST", "/leases", {"request": REQUEST, "places": [{"node_id": "n1"}]}),
    ("LeaseService.Explain", "POST", "/leases:explain", REQUEST),
    ("LeaseService.Get", "GET", "/leases/{lease}", None),
    ("LeaseService.Explain", "GET", "/leases/{lease}/explanation", None),
    ("LeaseService.GetTimeline", "GET", "/leases/{lease}/timeline", None),
    ("LeaseService.Release", "POST", "/leases/{lease}:release", None),
    ("LeaseService.AcknowledgeShape", "POST", "/leases/{lease}:acknowledge", {"shape": 1}),
    ("LeaseService.ExtendLease", "POST", "/leases/{lease}:extend", {"time_limit_s": 7200}),
    ("LeaseService.ExemptLease", "POST", "/leases/{lease}:exempt", {"for_s": 60}),
    ("LeaseService.GetUse", "GET", "/use?tenant=vision", None),
    ("LeaseService.Watch", "GET", "/events?tenant=vision", None),
    ("PoolService.GetStatus", "GET", "/status", None),
    ("PoolService.GetStatus", "GET", "/cluster/status", None),
    ("PoolService.ListNodes", "GET", "/nodes", None),
    ("PoolService.DeclareNodes", "PUT", "/nodes", [{"name": "n9", "agentless": True}]),
    ("PoolService.Fits", "POST", "/nodes:fits", {"request": {"gpu": "0.001,1Mi"}}),
    ("PoolService.GetNode", "GET", "/nodes/n1", None),
    ("PoolService.Cordon", "POST", "/nodes/n9:cordon", None),
    ("PoolService.Uncordon", "POST", "/nodes/n9:uncordon", None),
    ("PoolService.Drain", "POST", "/nodes/n9:drain", None),
    ("PoolService.RemoveNode", "DELETE", "/nodes/n9", None),
    ("PoolService.ListDevices", "GET", "/devices", None),
    ("PoolService.ListDevices", "GET", "/gpu/metrics", None),
    ("PoolService.WatchFleet", "GET", "/fleet", None),
    ("PoolService.WatchFleet", "GET", "/fleet/events", None),
    ("PoolService.Forecast", "GET", "/forecast", None),
    ("PoolService.GetHealth", "GET", "/health", None),
    ("PoolService.SettleSlices", "POST", "/nodes/nothing:settle", None),
    ("PoolService.QuarantineDevice", "POST", "/devices/nothing:quarantine", None),
    ("PoolService.VerifyDevice", "POST", "/devices/nothing:verify", None),
    ("PoolService.ReturnDevice", "POST", "/devices/nothing:return", None),
    ("PoolService.ListNodes", "POST", "/plans", {"requests": [{"gpu": "nothing"}]}),
    ("AdminService.GetTenancy", "GET", "/tenancy", None),
    ("AdminService.Apply", "PUT", "/tenancy?dry_run=true", {"tenants": [{"name": "vision/new"}]}),
    ("AdminService.Withdraw", "DELETE", "/tenancy/tenant/vision/new", None),
    ("AdminService.RetrySetAside", "GET", "/set-aside", None),
    ("AdminService.GetInvoice", "GET", "/invoices/vision?from_ms=0&to_ms=86400000", None),
    ("AdminService.PostCredit", "POST", "/credits/vision", {"money_micro": 1, "reference": "r"}),
    ("AdminService.ListMaintenance", "GET", "/maintenance", None),
    (
        "AdminService.DeclareMaintenance",
        "PUT",
        "/maintenance",
        {"name": "w", "start": "2027-01-01T00:00", "end": "2027-01-01T01:00", "node_ids": ["n1"]},
    ),
    ("AdminService.EndMaintenance", "DELETE", "/maintenance/w", None),
    ("AccessService.WhoAmI", "GET", "/whoami", None),
    ("AccessService.ListPrincipals", "GET", "/principals", None),
    ("AccessService.GrantRole", "PUT", "/grants", {"principal": "new", "role": "VIEWER", "scope": "vision"}),
    ("AccessService.RevokeRole", "DELETE", "/grants?principal=new&role=VIEWER&scope=vision", None),
    ("AccessService.ListTokens", "GET", "/tokens", None),
    (
        "AccessService.IssueToken",
        "POST",
        "/tokens",
        {"principal": "new", "grants": [{"role": "VIEWER", "scope": "vision"}]},
    ),
    ("AccessService.RevokeTokens", "DELETE", "/tokens/nothing", None),
    ("AccessService.ListAudit", "GET", "/audit", None),
    ("AccessService.ListDenials", "GET", "/denials", None),
    ("LeaseService.Allocate", "POST", "/schedule", {"pod_name": "p", "gpu_requirement": "0.001,1Mi"}),
]
OF_BROWSERS = {("POST", "/session"), ("DELETE", "/session"), ("POST", "/session/codes")}
"""In test_sessions.py."""
AT_THE_PROVIDER = {"/login/oidc", "/login/oidc/callback"}
"""In test_oidc.py."""
ELSEWHERE = {("GET", "/trends"), ("GET", "/dashboard/config"), ("POST", "/hpa")}
"""Of an earlier API: answered with what does it instead."""
EVERYBODYS = AT_THE_PROVIDER | {"/healthz", "/readyz", "/ready", "/api/v1", "/login"}
USERS = EXPECTED["LeaseService.Allocate"][0].split()
OF_NOBODY = {"/tokens/nothing"}
"""Whom it would be about is known only where there is something."""


def test_every_route_is_in_the_table(site: Site) -> None:
    listed = {(verb, _template(path)) for _, verb, path, _ in ROUTES}
    there = {(verb, _template(route.path)) for route in _routes(site.api) for verb in route.methods or ()}
    assert there - {("GET", path) for path in EVERYBODYS} - OF_BROWSERS - ELSEWHERE == listed


def _template(path: str) -> str:
    """What two ways of writing a path have in common."""
    path = path.partition("?")[0].removeprefix("/api/v1") if path != "/api/v1" else path
    path = re.sub(r"/\{kind\}/\{name:path\}|/tenant/vision/new", "/*", path)
    return re.sub(r"/(\{\w+(:path)?\}|n1|n9|w|nothing|vision)(?=$|/|:)", "/*", path)


def _routes(api: Any) -> Iterator[APIRoute]:
    """FastAPI keeps the routes of what is included below that."""
    for route in api.routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            prefix = route.include_context.prefix
            for inner in _routes(route.original_router):
                outer = copy.copy(inner)
                outer.path = prefix + inner.path
                yield outer


async def test_nobody_does_more_or_less_than_through_the_contract(site: Site) -> None:
    surprises: list[str] = []
    async with served(site.app) as address, httpx.AsyncClient(base_url=f"{address}/api/v1") as http:

        async def status(token: str, verb: str, path: str, body: Any) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with http.stream(verb, path, json=body, headers=headers) as answer:
                return answer.status_code

        # Only administrators make the first declaration; managers add to it.
        await status(site.people["admin"].token, "PUT", "/tenancy", {"tenants": [{"name": "vision"}]})
        for method, verb, template, body in ROUTES:
            allowed = EXPECTED[method][0].split()
            if template == "/leases:explain":
                allowed = USERS  # who could ask for it; of a lease that is there, who may see it
            for name, person in site.people.by_name.items():
                if "n9" in template:
                    await status(site.people["admin"].token, "PUT", "/nodes", [{"name": "n9", "agentless": True}])
                lease_id = ""
                if "{lease}" in template:
                    lease_id = (await site.people.admin.lease("vision", "0.001,1Mi")).lease_id
                code = await status(person.token, verb, template.format(lease=lease_id), body)
                expected = name.replace(" ", "-") in allowed or template in OF_NOBODY
                if (code not in (401, 403)) != expected or code >= 500:
                    surprises.append(f"{name}: {verb} {template}: {code}")
            if await status("", verb, template.format(lease="l-1"), body) != 401:
                surprises.append(f"without a token: {verb} {template}")
    assert not surprises


@pytest.mark.parametrize(
    "name", ["admin", *(pytest.param(name, marks=pytest.mark.slow) for name in GRANTS if name != "admin")]
)
async def test_whatever_the_document_allows_is_answered(site: Site, name: str) -> None:
    import schemathesis  # takes long to import, and every worker imports this module
    from schemathesis.specs.openapi import checks

    conforms = (
        checks.response_schema_conformance,
        checks.content_type_conformance,
        checks.status_code_conformance,
    )
    document = site.api.openapi()
    for endless in ("/api/v1/events", "/api/v1/fleet/events"):
        document["paths"].pop(endless)
    schema = schemathesis.openapi.from_dict(document)
    headers = {"Authorization": f"Bearer {site.people[name].token}"}
    session = requests.Session()

    def ask(address: str, operation: Any) -> None:
        @settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def call(case: Any) -> None:
            answer = case.call(base_url=address, headers=headers, session=session, timeout=30)
            if (operation.method.upper(), operation.path.removeprefix("/api/v1")) in ELSEWHERE:
                assert answer.status_code == 501
                return
            assert answer.status_code < 500, (operation.label, answer.status_code, answer.text)
            case.validate_response(answer, checks=conforms)

        call()

    async with served(site.app) as address:
        for found in schema.get_all_operations():
            await asyncio.to_thread(ask, address, found.ok())  # type: ignore[union-attr]
