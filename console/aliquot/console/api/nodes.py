"""Nodes and devices: look, declare, close, empty."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response

from aliquot.client import Device, Node, NodeFit, Status
from aliquot.client.health import UnknownSlice
from aliquot.console.api.answers import answer, page_of, shows, shows_page
from aliquot.console.api.asking import DeclaredNode, Drain, Fields, Fitting, PageSize, PoolName, Reason, Slices
from aliquot.console.api.callers import Pool

router = APIRouter(tags=["nodes"])


@router.get("/status", tags=["pool"], responses=shows(Status))
async def status(pool: Pool) -> Response:
    """Totals by pool, model, tenant and queue."""
    return answer(await pool.status())


@router.get("/nodes", responses=shows_page(Node))
async def list_nodes(
    pool: Pool,
    pool_name: PoolName = "",
    devices: bool = False,  # noqa: FBT001 - a name in the query
    page_size: PageSize = 100,
    page_token: str = "",
    fields: Fields = "",
) -> Response:
    """Nodes in the order of their ids, with their devices where asked for."""
    return page_of(await pool.nodes_page(page_token, page_size, pool=pool_name, with_devices=devices), fields)


@router.put("/nodes", responses=shows(tuple[Node, ...]))
async def declare(pool: Pool, nodes: list[DeclaredNode]) -> Response:  # type: ignore[valid-type]
    """Declare nodes before, or without, their agents. Declaring again replaces."""
    return answer(await pool.declare(nodes))


@router.post("/nodes:fits", responses=shows(tuple[NodeFit, ...]))
async def fits(pool: Pool, asked: Fitting) -> Response:
    """Which nodes could take one member of a request now, and how they compare."""
    return answer(await pool.fits(asked.request, asked.node_ids))


@router.get("/nodes/{node_id}", responses=shows(Node))
async def get(pool: Pool, node_id: str) -> Response:
    """One node, by id or name, with its devices."""
    return answer(await pool.node(node_id))


@router.post("/nodes/{node_id}:settle", responses=shows(tuple[UnknownSlice, ...]))
async def settle(pool: Pool, node_id: str, which: Slices | None = None) -> Response:
    """End what its agent holds and the books do not know (`unknown_slices` of `/health`). Answers what that is."""
    return answer(await pool.admin.settle_slices(node_id, which.slice_ids if which else ()))


@router.delete("/nodes/{node_id}", status_code=HTTPStatus.NO_CONTENT, responses=shows(None, HTTPStatus.NO_CONTENT))
async def remove(pool: Pool, node_id: str, force: bool = False) -> Response:  # noqa: FBT001 - a name in the query
    """Forget a node; one that is LOST and will not return, with what it held (`force`)."""
    await pool.remove_node(node_id, force=force)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.post("/nodes/{node_id}:cordon", responses=shows(Node))
async def cordon(pool: Pool, node_id: str, why: Reason | None = None) -> Response:
    """Place nothing new there; what runs stays."""
    return answer(await pool.cordon(node_id, reason=why.reason if why else ""))


@router.post("/nodes/{node_id}:uncordon", responses=shows(Node))
async def uncordon(pool: Pool, node_id: str) -> Response:
    """Place leases there again."""
    return answer(await pool.uncordon(node_id))


@router.post("/nodes/{node_id}:drain", responses=shows(Node))
async def drain(pool: Pool, node_id: str, how: Drain | None = None) -> Response:
    """Place nothing new there, and end its leases."""
    reason, grace_s = (how.reason, how.grace_s) if how else ("", 0)
    return answer(await pool.drain(node_id, reason=reason, grace_s=grace_s))


@router.get("/devices", tags=["devices"], responses=shows_page(Device))
async def list_devices(  # noqa: PLR0917 - each is a name in the query
    pool: Pool,
    pool_name: PoolName = "",
    node_id: str = "",
    model: str = "",
    page_size: PageSize = 100,
    page_token: str = "",
    fields: Fields = "",
) -> Response:
    """GPUs and MIG instances, with what is held of them and their last reading."""
    page = await pool.devices_page(page_token, page_size, pool=pool_name, node_id=node_id, model=model)
    return page_of(page, fields)
