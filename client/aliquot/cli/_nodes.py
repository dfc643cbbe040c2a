"""Turns node names into ids: the command line takes both, a request only ids."""

from __future__ import annotations

from dataclasses import replace

from aliquot.client import Pool, Request


def node_id_of(pool: Pool, name: str) -> str:
    """The id of a node named by id or name. Raises `NodeNotFound`."""
    return pool.node(name).node_id


def with_node_ids(pool: Pool, request: Request) -> Request:
    """The request with node names replaced by ids."""
    if not (request.node_ids or request.avoid_node_ids):
        return request
    return replace(
        request,
        node_ids=tuple(node_id_of(pool, name) for name in request.node_ids),
        avoid_node_ids=tuple(node_id_of(pool, name) for name in request.avoid_node_ids),
    )
