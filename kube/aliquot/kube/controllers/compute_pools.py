"""ComputePools show the pool's own figures in Kubernetes. They declare nothing: the pool's files do (`aliquot apply`).

One place says what tenants may hold, whichever launcher asks; two that each declare it would overwrite one another.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from aliquot.client import PoolError, Status
from aliquot.kube.api import objects
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeError, KubeNotFound, level_of
from aliquot.kube.api.informer import Informer
from aliquot.kube.api.resources import COMPUTE_POOLS
from aliquot.kube.core.shapes import RawMeta
from aliquot.kube.holding.book import LeaseBook

log = logging.getLogger(__name__)

_EVERY_S: Final = 10.0


class RawPoolSpec(msgspec.Struct):
    """`spec`."""

    pool: str = ""


class RawComputePool(msgspec.Struct):
    """`aliquot.dev/v1alpha1` ComputePool."""

    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    spec: RawPoolSpec = msgspec.field(default_factory=RawPoolSpec)
    status: dict[str, Any] = {}


def status_of(pool: str, status: Status, now_text: str, before: dict[str, Any]) -> dict[str, Any]:
    """The status of a ComputePool. Shares are in thousandths of a GPU, memory in bytes."""
    totals = [one for one in status.pools if one.pool == pool]
    total = sum(one.capacity_share_milli for one in totals)
    leased = sum(one.leased_share_milli for one in totals)
    problem = "" if totals else f"the pool has no devices named {pool}"
    if not status.granting:
        problem = f"nothing is granted: {status.not_granting_reason}"
    state = "False" if problem else "True"
    known: dict[str, str] = next((one for one in before.get("conditions", ()) if one.get("type") == "Ready"), {})
    return {
        "phase": "NotReady" if problem else "Ready",
        "devices": sum(one.devices for one in totals),
        "models": ",".join(sorted({one.model for one in totals})),
        "totalMilli": total,
        "allocatedMilli": leased,
        "availableMilli": total - leased,
        "totalMemoryBytes": sum(one.capacity_memory_bytes for one in totals),
        "allocatedMemoryBytes": sum(one.leased_memory_bytes for one in totals),
        "conditions": [
            {
                "type": "Ready",
                "status": state,
                "reason": "NotReady" if problem else "Serving",
                "message": problem or f"{len(totals)} models",
                "lastTransitionTime": known.get("lastTransitionTime", now_text)
                if known.get("status") == state
                else now_text,
            }
        ],
    }


class ComputePoolController:
    """Writes the status of every ComputePool, when it has changed."""

    def __init__(self, client: KubeClient, book: LeaseBook, *, every_s: float = _EVERY_S) -> None:
        self._client = client
        self._book = book
        self._every_s = every_s
        self.pools: Informer[RawComputePool, RawComputePool] = Informer(
            client, COMPUTE_POOLS, RawComputePool, lambda one: one, optional=True
        )

    async def run(self) -> None:
        """Work until cancelled."""
        following = asyncio.ensure_future(self.pools.run())
        try:
            await self.pools.synced.wait()
            while True:
                if len(self.pools):
                    await self._write(list(self.pools))
                await asyncio.sleep(self._every_s)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _write(self, several: Iterable[RawComputePool]) -> None:
        try:
            status = await self._book.pool.status()
        except PoolError as error:
            log.log(level_of(error), "ComputePools are not brought up to date: %s", error.message)
            return
        for one in several:
            name = one.metadata.name
            now_text = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            found = status_of(one.spec.pool or name, status, now_text, one.status)
            if found == one.status:
                continue
            try:
                await objects.patch_status(self._client, COMPUTE_POOLS, "", name, found)
            except KubeNotFound:
                continue
            except KubeError as error:
                log.log(level_of(error), "ComputePool %s: %s", name, error.message)
