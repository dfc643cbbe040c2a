"""Seconds over a limit are the tenant's: on whichever node they were, and whatever has become of that node's agent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from aliquot.cli.localpool import LocalPool
from aliquot.client import LeaseLost
from tests.agent.harness import until
from tests.client.real_pool import real_pool
from tests.enforce.churning import greedy, over_limit


@pytest.fixture(scope="module")
def local() -> Iterator[LocalPool]:
    with real_pool(nodes=2, gpus=1) as pool:
        yield pool


def exceed(local: LocalPool, tenant: str, node: str, *, ends: bool) -> None:
    """One lease of the tenant there, exceeded until its program is killed; what has become of the lease by then."""
    with local.connect() as pool:
        node_id = next(each.node_id for each in pool.nodes() if each.name == node)
        with contextlib.suppress(LeaseLost), pool.lease("0.25,4Gi", tenant=tenant, places=[node_id]) as lease:
            greedy(lease, local, node).wait(60)
            if ends:
                until(lambda: over_limit(pool, lease.lease_id), "the lease ended as OVER_LIMIT", 60)
            else:
                assert not over_limit(pool, lease.lease_id)


def test_time_over_on_one_node_counts_on_another(local: LocalPool) -> None:
    exceed(local, "goes-on", "node-1", ends=False)
    exceed(local, "goes-on", "node-2", ends=True)


def test_time_over_is_remembered_when_the_agent_starts_again(local: LocalPool) -> None:
    exceed(local, "comes-back", "node-1", ends=False)
    agent = local.node("node-1").agent
    agent.kill()
    agent.start()
    exceed(local, "comes-back", "node-1", ends=True)


def test_each_tenant_answers_for_itself(local: LocalPool) -> None:
    exceed(local, "one", "node-1", ends=False)
    exceed(local, "another", "node-2", ends=False)
