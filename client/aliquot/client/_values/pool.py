"""Sums over the pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """Capacity of one model in one pool, and what of it is leased."""

    pool: str
    model: str
    devices: int
    capacity_share_milli: int
    leased_share_milli: int
    capacity_memory_bytes: int
    leased_memory_bytes: int
    vendor: str = ""
    """Of the model, as agents say it; empty: the coordinator is older."""


@dataclass(frozen=True, slots=True)
class TenantTotals:
    """What one tenant holds and waits for in one queue."""

    tenant: str
    queue: str
    leased_share_milli: int
    leased_memory_bytes: int
    leases: int
    queued: int


@dataclass(frozen=True, slots=True)
class Status:
    """The pool at one durable sequence number."""

    seq: int
    leader_epoch: int
    version: str
    granting: bool
    """False while the journal can't be written."""
    not_granting_reason: str
    pools: tuple[PoolTotals, ...]
    tenants: tuple[TenantTotals, ...]
    queued: int
    leases: int
    nodes_by_state: Mapping[str, int]
