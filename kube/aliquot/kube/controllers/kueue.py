"""Kueue's admission checks: the whole gang of a Workload is reserved before its pods exist, and let go once.

Reservations are leases of gangs with the owner `kueue`; their pods find them by the label that Kueue adds for us. A
Workload that is evicted, finished, deactivated or deleted lets its reservation go, also if it went while we were away.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from aliquot.client import NeverFits, PoolError, Refused, Unavailable
from aliquot.common.errors import AliquotError
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeConflict, KubeError, KubeNotFound
from aliquot.kube.api.informer import Informer
from aliquot.kube.api.objects import Regarding
from aliquot.kube.api.resources import ADMISSION_CHECKS, WORKLOADS
from aliquot.kube.core import kueue
from aliquot.kube.core.kueue import GangOf, RawWorkload, Step
from aliquot.kube.core.leases import KubeLease, labels_of
from aliquot.kube.core.shapes import RawMeta
from aliquot.kube.holding.book import LeaseBook
from aliquot.kube.holding.granting import Granter
from aliquot.kube.holding.requests import Requests
from aliquot.kube.holding.telling import Teller

log = logging.getLogger(__name__)

_EVERY_S: Final = 10.0


class _CheckSpec(msgspec.Struct, rename="camel"):
    controller_name: str = ""


class _CheckStatus(msgspec.Struct):
    conditions: list[kueue.RawCondition] | None = None


class _RawCheck(msgspec.Struct):
    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    spec: _CheckSpec = msgspec.field(default_factory=_CheckSpec)
    status: _CheckStatus = msgspec.field(default_factory=_CheckStatus)


class KueueController:
    """See the module's docstring. `run` follows Workloads; where Kueue is not installed it waits for it."""

    def __init__(self, client: KubeClient, book: LeaseBook, requests: Requests, teller: Teller) -> None:
        self._client = client
        self._book = book
        self._requests = requests
        self._teller = teller
        self._granter = Granter(book.pool, book)
        self._due: set[str] = set()
        self._gone: set[str] = set()
        """Uids of Workloads that the API server has said are deleted."""
        self._wake = asyncio.Event()
        self.workloads: Informer[RawWorkload, RawWorkload] = Informer(
            client, WORKLOADS, RawWorkload, lambda one: one, on_change=self._changed, optional=True
        )
        self.checks: Informer[_RawCheck, _RawCheck] = Informer(
            client,
            ADMISSION_CHECKS,
            _RawCheck,
            lambda one: one if one.spec.controller_name == kueue.CONTROLLER else None,
            on_change=lambda _, __, ___: self._touch_all(),
            optional=True,
        )
        book.on_lease.append(self._lease_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        following = [asyncio.ensure_future(self.workloads.run()), asyncio.ensure_future(self.checks.run())]
        try:
            for known in (self._book.synced, self.workloads.synced, self.checks.synced):
                await known.wait()
            while True:
                self._touch_all()
                await self._tell_active()
                await self._sweep()
                deadline = asyncio.get_running_loop().time() + _EVERY_S
                while asyncio.get_running_loop().time() < deadline:
                    self._wake.clear()
                    due, self._due = self._due, set()
                    gone, self._gone = self._gone, set()
                    for uid in gone:
                        await self._let_go(self._leases(uid), "its Workload was deleted")
                    for key in sorted(due):
                        await self._guarded(key)
                    try:
                        async with asyncio.timeout_at(deadline):
                            await self._wake.wait()
                    except TimeoutError:
                        break
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    def _changed(self, key: str, before: RawWorkload | None, after: RawWorkload | None) -> None:
        if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
            self._gone.add(before.metadata.uid)
        self._touch(key)

    def _touch(self, key: str) -> None:
        self._due.add(key)
        self._wake.set()

    def _touch_all(self) -> None:
        self._due.update(self.workloads.items())
        self._wake.set()

    def _lease_changed(self, lease: KubeLease) -> None:
        uid = kueue.workload_uid(lease.gang)
        if uid:
            self._due.update(key for key, one in self.workloads.items().items() if one.metadata.uid == uid)
            self._wake.set()

    async def _guarded(self, key: str) -> None:
        try:
            await self._work(key)
        except (PoolError, KubeError) as error:
            log.warning("Workload %s: %s", key, error.message)
            self._due.add(key)  # with the next change, or the next pass

    async def _work(self, key: str) -> None:
        workload = self.workloads.get(key)
        if workload is None:
            return  # deleted
        leases = self._leases(workload.metadata.uid)
        match kueue.step(workload, set(self.checks.items()), leases):
            case Step.RESERVE:
                await self._reserve(workload)
            case Step.READY:
                await self._ready(workload, leases)
            case Step.RETRY:
                await self._let_go(leases, "the reservation was taken back")
                await self._set(workload, "Retry", "the reservation was taken back by the pool")
            case Step.RELEASE:
                await self._let_go(leases, "its Workload does not need it any more")
            case Step.NOTHING:
                pass

    def _leases(self, uid: str) -> dict[str, KubeLease]:
        return {lease.gang: lease for lease in self._book if kueue.workload_uid(lease.gang) == uid}

    async def _reserve(self, workload: RawWorkload) -> None:
        gangs = kueue.gangs_of(workload)
        conflict = kueue.conflicts(gangs)
        if conflict:
            await self._set(workload, "Rejected", conflict)
            return
        leases: dict[str, KubeLease] = {}
        try:
            for one in gangs:
                leases[one.gang] = await self._reserve_one(workload, one)
        except AliquotError as error:
            # All or none: what was reserved for other pod sets goes back.
            await self._let_go(leases, "another pod set of its Workload did not fit")
            await self._refused(workload, error)
            return
        await self._ready(workload, leases)

    async def _reserve_one(self, workload: RawWorkload, one: GangOf) -> KubeLease:
        asked = await self._requests.of(one.pod)
        assert asked is not None
        meta = workload.metadata
        request = replace(
            asked.request,
            gang_size=one.size,
            name=f"{meta.namespace}/{meta.name}",
            labels=labels_of(self._book.cluster, meta.namespace, gang=one.gang, owner=kueue.OWNER),
        )
        return await self._granter.for_gang(meta.namespace, one.gang, request)

    async def _refused(self, workload: RawWorkload, error: AliquotError) -> None:
        if isinstance(error, (Unavailable, KubeError)):
            raise error
        told = error.message
        if isinstance(error, PoolError) and error.explanation is not None and error.explanation.summary:
            told = error.explanation.summary
        hopeless = isinstance(error, NeverFits) or not isinstance(error, Refused)
        await self._set(workload, "Rejected" if hopeless else "Retry", told)
        meta = workload.metadata
        about = Regarding("Workload", meta.namespace, meta.name, meta.uid, WORKLOADS.version)
        self._teller.tell(about, "AliquotImpossible" if hopeless else "AliquotWaiting", told, warning=True)

    async def _ready(self, workload: RawWorkload, leases: Mapping[str, KubeLease]) -> None:
        updates = kueue.pod_set_updates(kueue.gangs_of(workload), leases)
        await self._set(workload, "Ready", "the whole gang is reserved", updates)

    async def _set(
        self, workload: RawWorkload, state: str, message: str, updates: list[dict[str, Any]] | None = None
    ) -> None:
        """Set the state of our checks, at the version that is there; a conflict is settled by the next change."""
        meta = workload.metadata
        path = WORKLOADS.path(meta.namespace, meta.name)
        try:
            found = msgspec.json.decode(await self._client.get(path))
            if found["metadata"]["uid"] != meta.uid:
                return
            for check in found["status"].get("admissionChecks", ()):
                if self.checks.get(check["name"]) is None:
                    continue
                check.update(state=state, message=message[:1024], lastTransitionTime=_now_text())
                check.pop("podSetUpdates", None)
                check.pop("requeueAfterSeconds", None)
                if updates:
                    check["podSetUpdates"] = updates
                if state == "Retry":
                    check["requeueAfterSeconds"] = kueue.RETRY_AFTER_S
            await self._client.put(f"{path}/status", found)
        except (KubeConflict, KubeNotFound):
            self._touch(f"{meta.namespace}/{meta.name}")

    async def _let_go(self, leases: Mapping[str, KubeLease], why: str) -> None:
        for lease in leases.values():
            await self._granter.undo(lease, why)

    async def _sweep(self) -> None:
        """Reservations whose Workload is gone. The API server is asked: our own list may be a moment old."""
        known = {one.metadata.uid for one in self.workloads}
        for lease in self._book:
            uid = kueue.workload_uid(lease.gang)
            if lease.owner != kueue.OWNER or uid in known:
                continue
            try:
                whole = await self._book.pool.get(lease.lease_id)
                namespace, _, name = whole.name.partition("/")
                found = msgspec.json.decode(await self._client.get(WORKLOADS.path(namespace, name)))
                if found["metadata"]["uid"] == uid:
                    continue
            except KubeNotFound:
                pass
            except (PoolError, KubeError) as error:
                log.warning("lease %s could not be looked at: %s", lease.lease_id, error.message)
                continue
            await self._granter.undo(lease, "its Workload is gone")

    async def _tell_active(self) -> None:
        """Kueue uses a check only once its controller says that it is there."""
        for check in self.checks:
            if any(one.type == "Active" and one.status == "True" for one in check.status.conditions or ()):
                continue
            condition = {
                "type": "Active",
                "status": "True",
                "reason": "Active",
                "message": "the controller of aliquot runs",
                "lastTransitionTime": _now_text(),
            }
            path = ADMISSION_CHECKS.path(name=check.metadata.name, subresource="status")
            try:
                await self._client.patch(path, {"status": {"conditions": [condition]}})
            except KubeError as error:
                log.warning("AdmissionCheck %s: %s", check.metadata.name, error.message)


def _now_text() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
