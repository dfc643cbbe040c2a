"""The data of the screen: the pool's nodes and leases, and what this machine's agents observe.

The coordinator knows what is reserved, and what agents report of devices and slices when it changes by enough. This
machine's own agents know the present use.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from aliquot.cli._words import natural
from aliquot.client import AgentError, Lease, LeaseState, Node, Pool, Status

LEASES_SHOWN = 1000
NODES_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one moment."""

    at_ms: int
    addresses: tuple[str, ...]
    status: Status
    nodes: tuple[Node, ...]
    leases: tuple[Lease, ...]
    """Leases that hold something, then those that wait."""
    observed_bytes: Mapping[str, int | None]
    """What slices really use, by slice id; None or absent if not known."""
    more_leases: int = 0
    more_nodes: int = 0


def take(pool: Pool) -> Snapshot:
    """Take a snapshot. Raises `PoolError`."""
    status = pool.status()
    nodes = sorted(islice(pool.nodes(), NODES_SHOWN), key=lambda node: natural(node.name))
    leases = list(islice(pool.leases(), LEASES_SHOWN))
    leases.sort(key=lambda lease: (lease.state is LeaseState.QUEUED, lease.tenant, lease.created_ms))
    return Snapshot(
        at_ms=int(time.time() * 1000),
        addresses=pool.addresses,
        status=status,
        nodes=tuple(nodes),
        leases=tuple(leases),
        observed_bytes={part.slice_id: part.observed_bytes for lease in leases for part in lease.slices}
        | observe(pool),
        more_leases=max(0, status.leases - len(leases)),
        more_nodes=max(0, sum(status.nodes_by_state.values()) - len(nodes)),
    )


def observe(pool: Pool) -> dict[str, int | None]:
    """What slices use, as this machine's agents see it."""
    observed: dict[str, int | None] = {}
    for agent in pool.agents:
        try:
            slices = agent.status().slices
        except AgentError:
            # A socket without an agent: its node's figures are not known.
            continue
        observed |= {part.slice_id: part.observed_bytes for part in slices}
    return observed
