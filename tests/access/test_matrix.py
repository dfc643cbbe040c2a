"""Every role on every method of the contract, in one's own tenant and in another's, over TLS.

What is expected stands here in full and by hand; the product's own tables are not asked. A method that the descriptors
have and this table has not fails the test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from aliquot.coordinator.settings.config import LimitSettings, TlsSettings
from aliquot.v1 import (
    access_pb2,
    admin_pb2,
    admin_pb2_grpc,
    agent_pb2,
    enrolment_pb2,
    enrolment_pb2_grpc,
    leases_pb2,
    pool_pb2,
    supply_pb2,
    supply_pb2_grpc,
    types_pb2,
)
from tests.access.people import OTHER, OWN, People, Person, introduce
from tests.certificates import Authority
from tests.coordinator.pool import allocation, error_info, running, settings_for

Call = Callable[[Person, str], Awaitable[Any]]

READERS_OWN = "viewer user manager viewer-of-all operator admin console"
READERS_ALL = "viewer-of-all operator admin console"
POOL = READERS_OWN + " metrics"
EVERYBODY = POOL + " workload"
OPERATORS = "operator admin"

EXPECTED: dict[str, tuple[str, str]] = {
    # method: who in their own tenant (the lease is somebody else's), who in another
    "LeaseService.Allocate": ("user manager admin", "admin"),
    "LeaseService.GrantOn": ("user manager admin", "admin"),
    "LeaseService.AllocateBatch": ("user manager admin", "admin"),
    "LeaseService.Explain": (READERS_OWN, READERS_ALL),
    "LeaseService.KeepAlive": ("manager admin", "admin"),
    "LeaseService.Release": ("manager operator admin", "operator admin"),
    "LeaseService.ReleaseBatch": ("manager operator admin", "operator admin"),
    "LeaseService.AcknowledgeShape": ("manager admin", "admin"),
    "LeaseService.ExtendLease": ("manager admin", "admin"),
    "LeaseService.Get": (READERS_OWN, READERS_ALL),
    "LeaseService.GetTimeline": (READERS_OWN, READERS_ALL),
    "LeaseService.List": (READERS_OWN, READERS_ALL),
    "LeaseService.GetUse": (READERS_OWN, READERS_ALL),
    "LeaseService.ExemptLease": ("manager operator admin", "operator admin"),
    "LeaseService.ConfirmNotice": ("manager operator admin", "operator admin"),
    "LeaseService.Watch": (READERS_OWN, READERS_ALL),
    "PoolService.DeclareNodes": (OPERATORS, OPERATORS),
    "PoolService.RemoveNode": (OPERATORS, OPERATORS),
    "PoolService.GetNode": (POOL, POOL),
    "PoolService.ListNodes": (POOL, POOL),
    "PoolService.ListDevices": (POOL, POOL),
    "PoolService.Fits": (POOL, POOL),
    "PoolService.Cordon": (OPERATORS, OPERATORS),
    "PoolService.Uncordon": (OPERATORS, OPERATORS),
    "PoolService.Drain": (OPERATORS, OPERATORS),
    "PoolService.GetStatus": (POOL, POOL),
    "PoolService.WatchFleet": (POOL, POOL),
    "PoolService.GetHealth": (POOL, POOL),
    "PoolService.Forecast": (POOL, POOL),
    "PoolService.SettleSlices": (OPERATORS, OPERATORS),
    "PoolService.QuarantineDevice": (OPERATORS, OPERATORS),
    "PoolService.VerifyDevice": (OPERATORS, OPERATORS),
    "PoolService.ReturnDevice": (OPERATORS, OPERATORS),
    "AdminService.Apply": ("manager admin", "admin"),
    "AdminService.Withdraw": ("manager admin", "admin"),
    "AdminService.GetTenancy": (POOL, POOL),
    "SupplyService.DeclareSupply": (OPERATORS, OPERATORS),
    "SupplyService.GetSupply": (POOL, POOL),
    "SupplyService.TakeOrders": (OPERATORS, OPERATORS),
    "SupplyService.ReportOrder": (OPERATORS, OPERATORS),
    "SupplyService.WithdrawOrder": (OPERATORS, OPERATORS),
    "SupplyService.ExpectDemand": (OPERATORS, OPERATORS),
    "AdminService.DeclareMaintenance": (OPERATORS, OPERATORS),
    "AdminService.EndMaintenance": (OPERATORS, OPERATORS),
    "AdminService.ListMaintenance": (POOL, POOL),
    "AdminService.GetInvoice": (READERS_OWN, READERS_ALL),
    "AdminService.PostCredit": ("admin", "admin"),
    "AdminService.CorrectUsage": ("admin", "admin"),
    "AdminService.CloseBooks": ("admin", "admin"),
    "AdminService.RetrySetAside": (OPERATORS, OPERATORS),
    "AdminService.Forgive": ("admin", "admin"),
    "AccessService.WhoAmI": (EVERYBODY, EVERYBODY),
    "AccessService.GrantRole": ("manager admin", "admin"),
    "AccessService.RevokeRole": ("manager admin", "admin"),
    "AccessService.ListPrincipals": ("manager operator admin", "manager operator admin"),
    "AccessService.IssueToken": ("manager admin", "admin"),
    "AccessService.RevokeTokens": ("manager admin", "admin"),
    "AccessService.ListTokens": (EVERYBODY, EVERYBODY),
    "AccessService.ListAudit": (OPERATORS, OPERATORS),
    "AccessService.ListDenials": (OPERATORS, OPERATORS),
    "AccessService.Bootstrap": ("", ""),
    "AccessService.GetAuthority": (EVERYBODY, EVERYBODY),
    "AccessService.ListAuthority": (OPERATORS, OPERATORS),
    "AccessService.RotateAuthority": ("admin", "admin"),
    "AccessService.RetireAuthority": ("admin", "admin"),
    "EnrolmentService.InviteNode": (OPERATORS, OPERATORS),
    "EnrolmentService.DisenrolNode": (OPERATORS, OPERATORS),
    "EnrolmentService.Join": ("", ""),  # who has an invite, and nobody else
}
BY_THEMSELVES = {"AgentService.Session", "AccessService.Login", "AccessService.DescribeLogin"}
"""Their callers are found out by a key or a certificate."""


def methods() -> set[str]:
    files = (leases_pb2, pool_pb2, admin_pb2, agent_pb2, access_pb2, enrolment_pb2, supply_pb2)
    return {
        f"{service.name}.{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def test_every_method_of_the_contract_is_in_the_table() -> None:
    assert methods() == set(EXPECTED) | BY_THEMSELVES


class Stranger(Person):
    """Somebody without any token."""

    def stub(self, service: Any) -> Any:
        return service(self.channel)


class _Calls:
    """How each method is called about a tenant."""

    def __init__(self, people: People) -> None:
        self.people = people
        self.number = 0

    async def lease_of(self, tenant: str) -> str:
        """One that the administrator asked for."""
        lease_id: str = (await self.people.admin.lease(tenant, "0.001,1Mi")).lease_id
        return lease_id

    async def __call__(self, method: str, who: Person, tenant: str) -> str:
        """Why it was refused, or nothing."""
        service, _, name = method.partition(".")
        make = getattr(self, name, None)
        try:
            if make is not None:
                return str(await make(who, tenant) or "")
            await self._plain(service, name, who)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return error.details() or "refused"
        return ""

    async def _plain(self, service: str, name: str, who: Person) -> None:
        module, grpc_module = {
            "PoolService": (pool_pb2, None),
            "AdminService": (admin_pb2, admin_pb2_grpc.AdminServiceStub),
            "AccessService": (access_pb2, None),
            "SupplyService": (supply_pb2, supply_pb2_grpc.SupplyServiceStub),
            "EnrolmentService": (enrolment_pb2, enrolment_pb2_grpc.EnrolmentServiceStub),
        }[service]
        stub = who.stub(grpc_module) if grpc_module is not None else who.nodes if module is pool_pb2 else who.access
        await getattr(stub, name)(getattr(module, f"{name}Request")())

    # LeaseService

    async def Allocate(self, who: Person, tenant: str) -> None:  # noqa: N802
        await who.leases.Allocate(allocation("0.001,1Mi", tenant=tenant))

    async def GrantOn(self, who: Person, tenant: str) -> None:  # noqa: N802
        request = leases_pb2.GrantOnRequest(request=types_pb2.LeaseRequest(gpu="0.001,1Mi", tenant=tenant))
        request.places.add(node_id="n1")
        await who.leases.GrantOn(request)

    async def AllocateBatch(self, who: Person, tenant: str) -> str:  # noqa: N802
        request = leases_pb2.AllocateBatchRequest(items=[allocation("0.001,1Mi", tenant=tenant)])
        return _of_item(await who.leases.AllocateBatch(request))

    async def Explain(self, who: Person, tenant: str) -> str:  # noqa: N802
        request = leases_pb2.ExplainRequest(lease_id=await self.lease_of(tenant))
        return "redacted" if (await who.leases.Explain(request)).lease.redacted else ""

    async def KeepAlive(self, who: Person, tenant: str) -> None:  # noqa: N802
        lease_id = await self.lease_of(tenant)

        async def once() -> Any:
            yield leases_pb2.KeepAliveRequest(lease_ids=[lease_id])

        async for _ in who.leases.KeepAlive(once()):
            pass

    async def Release(self, who: Person, tenant: str) -> None:  # noqa: N802
        await who.leases.Release(leases_pb2.ReleaseRequest(lease_id=await self.lease_of(tenant)))

    async def ReleaseBatch(self, who: Person, tenant: str) -> str:  # noqa: N802
        request = leases_pb2.ReleaseBatchRequest(lease_ids=[await self.lease_of(tenant)])
        return _of_item(await who.leases.ReleaseBatch(request))

    async def AcknowledgeShape(self, who: Person, tenant: str) -> None:  # noqa: N802
        request = leases_pb2.AcknowledgeShapeRequest(lease_id=await self.lease_of(tenant), shape=1)
        await who.leases.AcknowledgeShape(request)

    async def ExtendLease(self, who: Person, tenant: str) -> None:  # noqa: N802
        asked = allocation("0.001,1Mi", tenant=tenant, time_limit_s=3600)
        lease_id = (await self.people.admin.leases.Allocate(asked)).lease.lease_id
        await who.leases.ExtendLease(leases_pb2.ExtendLeaseRequest(lease_id=lease_id, time_limit_s=7200))

    async def GetUse(self, who: Person, tenant: str) -> None:  # noqa: N802
        await who.leases.GetUse(leases_pb2.GetUseRequest(tenant=tenant))

    async def ExemptLease(self, who: Person, tenant: str) -> None:  # noqa: N802
        request = leases_pb2.ExemptLeaseRequest(lease_id=await self.lease_of(tenant), for_s=60)
        await who.leases.ExemptLease(request)

    async def ConfirmNotice(self, who: Person, tenant: str) -> None:  # noqa: N802
        request = leases_pb2.ConfirmNoticeRequest(lease_id=await self.lease_of(tenant), number=1)
        await who.leases.ConfirmNotice(request)

    async def Get(self, who: Person, tenant: str) -> str:  # noqa: N802
        lease = await who.leases.Get(leases_pb2.GetRequest(lease_id=await self.lease_of(tenant)))
        assert lease.redacted != (lease.request.tenant == tenant)
        return "redacted" if lease.redacted else ""

    async def GetTimeline(self, who: Person, tenant: str) -> None:  # noqa: N802
        await who.leases.GetTimeline(leases_pb2.GetTimelineRequest(lease_id=await self.lease_of(tenant)))

    async def List(self, who: Person, tenant: str) -> None:  # noqa: N802
        await who.leases.List(leases_pb2.ListRequest(tenant=tenant))

    async def Watch(self, who: Person, tenant: str) -> None:  # noqa: N802
        stream = who.leases.Watch(leases_pb2.WatchRequest(tenant=tenant))
        await stream.read()
        stream.cancel()

    # PoolService

    async def WatchFleet(self, who: Person, tenant: str) -> None:  # noqa: N802 - nothing in it is a tenant's
        stream = who.nodes.WatchFleet(pool_pb2.WatchFleetRequest())
        await stream.read()
        stream.cancel()

    # AdminService

    async def Apply(self, who: Person, tenant: str) -> None:  # noqa: N802
        self.number += 1
        request = admin_pb2.ApplyRequest()
        request.tenants.add().spec.name = f"{tenant}/team{self.number}"
        await who.stub(admin_pb2_grpc.AdminServiceStub).Apply(request)

    async def Withdraw(self, who: Person, tenant: str) -> None:  # noqa: N802
        request = admin_pb2.WithdrawRequest(kind="tenant", name=f"{tenant}/nobody")
        await who.stub(admin_pb2_grpc.AdminServiceStub).Withdraw(request)

    async def GetInvoice(self, who: Person, tenant: str) -> None:  # noqa: N802
        await who.stub(admin_pb2_grpc.AdminServiceStub).GetInvoice(admin_pb2.GetInvoiceRequest(tenant=tenant))

    # AccessService

    def _grant(self, tenant: str) -> access_pb2.RoleGrant:
        return access_pb2.RoleGrant(role=access_pb2.VIEWER, scope=tenant)

    async def GrantRole(self, who: Person, tenant: str) -> None:  # noqa: N802
        self.number += 1
        request = access_pb2.GrantRoleRequest(principal=f"new{self.number}", grant=self._grant(tenant))
        await who.access.GrantRole(request)

    async def RevokeRole(self, who: Person, tenant: str) -> None:  # noqa: N802
        await self.GrantRole(self.people.admin, tenant)
        request = access_pb2.RevokeRoleRequest(principal=f"new{self.number}", grant=self._grant(tenant))
        await who.access.RevokeRole(request)

    async def IssueToken(self, who: Person, tenant: str) -> Any:  # noqa: N802
        self.number += 1
        request = access_pb2.IssueTokenRequest(principal=f"new{self.number}", grants=[self._grant(tenant)])
        await who.access.IssueToken(request)

    async def RevokeTokens(self, who: Person, tenant: str) -> None:  # noqa: N802
        await self.IssueToken(self.people.admin, tenant)
        await who.access.RevokeTokens(access_pb2.RevokeTokensRequest(principal=f"new{self.number}"))


def _of_item(response: Any) -> str:
    (result,) = response.results
    if not result.HasField("error"):
        return ""
    return str(result.error.message) if error_info(result.error).reason == "ROLE_MISSING" else ""


async def test_nobody_does_more_or_less_than_the_table_says(authority: Authority) -> None:
    certificate, key = authority.certify("coordinator")
    # Calls declare tenants: those that are asked for without it must stay what the table is about.
    limits = LimitSettings(strict_tenants=False)
    settings = settings_for(tls=TlsSettings(certificate_file=certificate, key_file=key), limits=limits)
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    surprises = []
    async with running(settings) as pool, grpc.aio.secure_channel(pool.address, credentials) as channel:
        people = await introduce(channel)
        tenants = [admin_pb2.TenantItem(spec=admin_pb2.TenantSpec(name=name)) for name in (OWN, OTHER)]
        await people.admin.stub(admin_pb2_grpc.AdminServiceStub).Apply(admin_pb2.ApplyRequest(tenants=tenants))
        callers = {name.replace(" ", "-"): person for name, person in people.by_name.items()}
        callers["workload"], _ = await people.workload(OWN)
        callers["nobody"] = Person("nobody", "alq_" + "0" * 12 + "_" + "0" * 64, channel)
        call = _Calls(people)
        for method, expected in EXPECTED.items():
            for tenant, allowed in zip((OWN, OTHER), expected, strict=True):
                for name, who in callers.items():
                    why = await call(method, who, tenant)
                    if (not why) != (name in allowed.split()):
                        surprises.append(f"{name}: {method} in {tenant}: {why or 'let in'}")
        without = _Calls(people)
        stranger = Stranger("", "", channel)
        strangers = [method for method in EXPECTED if not await without(method, stranger, OWN)]
        surprises += [f"without a token: {method}" for method in strangers]
    assert not surprises
