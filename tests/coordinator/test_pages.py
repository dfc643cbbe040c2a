"""Every list that is asked for by pages: whatever their size, everything comes once, in order, and no page is empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aliquot.v1 import access_pb2, access_pb2_grpc, leases_pb2, pool_pb2
from tests.coordinator.pool import Pool, running

Ask = Callable[[int, str], Any]


async def walked(ask: Ask, field: str, size: int) -> list[list[Any]]:
    """All pages of this size."""
    pages, token = [], ""
    while True:
        answer = await ask(size, token)
        pages.append(list(getattr(answer, field)))
        token = answer.next_page_token
        if not token:
            return pages


def lists(pool: Pool) -> dict[str, Ask]:
    """By the field in which their items come."""
    access = access_pb2_grpc.AccessServiceStub(pool.channel)
    return {
        "leases": lambda size, token: pool.leases.List(leases_pb2.ListRequest(page_size=size, page_token=token)),
        "nodes": lambda size, token: pool.nodes.ListNodes(pool_pb2.ListNodesRequest(page_size=size, page_token=token)),
        "devices": lambda size, token: pool.nodes.ListDevices(
            pool_pb2.ListDevicesRequest(page_size=size, page_token=token)
        ),
        "principals": lambda size, token: access.ListPrincipals(
            access_pb2.ListPrincipalsRequest(page_size=size, page_token=token)
        ),
        "tokens": lambda size, token: access.ListTokens(access_pb2.ListTokensRequest(page_size=size, page_token=token)),
        "entries": lambda size, token: access.ListAudit(access_pb2.ListAuditRequest(page_size=size, page_token=token)),
    }


async def test_pages_of_any_size_hold_everything_once() -> None:
    async with running() as pool:
        await pool.declare(6)
        access = access_pb2_grpc.AccessServiceStub(pool.channel)
        for number in range(5):
            grants = [access_pb2.RoleGrant(role=access_pb2.VIEWER)]
            await access.IssueToken(access_pb2.IssueTokenRequest(principal=f"p{number}", grants=grants))
            await pool.allocate("0.1")
        for field, ask in lists(pool).items():
            (whole,) = await walked(ask, field, 1000)
            assert len(whole) >= 5, field
            for size in (1, 2, len(whole) - 1, len(whole), len(whole) + 1):
                pages = await walked(ask, field, size)
                assert [each for page in pages for each in page] == whole, (field, size)
                assert [len(page) for page in pages[:-1]] == [size] * (len(pages) - 1), (field, size)
                assert pages[-1], f"{field} by {size}: the last page is none"
                assert len(pages) == -(-len(whole) // size), (field, size)
