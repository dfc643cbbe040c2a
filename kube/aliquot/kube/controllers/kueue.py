"""Kueue's admission checks: the whole gang of a Workload is reserved before its pods exist, and let go once.

Reservations are leases of gangs with the owner `kueue`; their pods find them by the label that Kueue adds for us. A
Workload that is evicted, finished, deactivated or deleted lets its reservation go, also if it went while we were away.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from aliquot.client import NeverFits, PoolError, Refused, Request, Unavailable
from aliquot.common.errors import AliquotError
from aliquot.kube.api.errors import KubeConflict, KubeError, KubeNotFound, level_of
from aliquot.kube.api.informer import Informer
from aliquot.kube.api.objects import Regarding, now_text
from aliquot.kube.api.resources import ADMISSION_CHECKS, WORKLOADS
from aliquot.kube.controllers.loop import OwnerLoop, Owning
from aliquot.kube.core import kueue
from aliquot.kube.core.kueue import GangOf, RawWorkload, Step
from aliquot.kube.core.leases import KubeLease, labels_of
from aliquot.kube.core.shapes import RawMeta
from aliquot.kube.holding.granting import Granter
from aliquot.kube.holding.parts import Parts

log = logging.getLogger(__name__)


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

    def __init__(self, parts: Parts) -> None:
        client, self._book = parts.client, parts.book
        self._client, self._requests, self._teller = client, parts.requests, parts.teller
        self._now_ms, self._patience = parts.now_ms, parts.patience
        self._granter = Granter(parts.book)
        self.workloads: Informer[RawWorkload, RawWorkload] = Informer(
            client, WORKLOADS, RawWorkload, lambda one: one, optional=True
        )
        self.checks: Informer[_RawCheck, _RawCheck] = Informer(
            client,
            ADMISSION_CHECKS,
            _RawCheck,
            lambda one: one if one.spec.controller_name == kueue.CONTROLLER else None,
            optional=True,
        )
        owning: Owning[RawWorkload] = Owning("Workload", kueue.OWNER, lambda one: one.metadata.uid, kueue.workload_uid)
        self.loop = OwnerLoop(
            parts, self.workloads, owning, self._look, others=(self.checks,), every_pass=self._tell_active
        )
        self.checks.on_change.append(lambda _, __, ___: self.loop.touch_all())

    async def _look(self, workload: RawWorkload) -> bool:
        leases = self.loop.leases_of(workload.metadata.uid)
        if any(lease.waits and self._now_ms() - lease.granted_ms > self._patience.gang_ms for lease in leases.values()):
            await self._let_go(leases, "no room could be made for it")
            await self._set(workload, "Retry", "no room could be made for it")
            return True
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
        return True

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
            if not await self._made_room(workload, gangs, error):
                await self._refused(workload, error)
            return
        await self._ready(workload, leases)

    async def _reserve_one(self, workload: RawWorkload, one: GangOf) -> KubeLease:
        request = await self._request(workload, one)
        return await self._granter.for_gang(workload.metadata.namespace, one.gang, request)

    async def _request(self, workload: RawWorkload, one: GangOf) -> Request:
        asked = await self._requests.of(one.pod, template=True)
        assert asked is not None
        meta = workload.metadata
        return replace(
            asked.request,
            gang_size=one.size,
            name=f"{meta.namespace}/{meta.name}",
            labels=labels_of(self._book.cluster, meta.namespace, gang=one.gang, owner=kueue.OWNER),
        )

    async def _made_room(self, workload: RawWorkload, gangs: list[GangOf], error: AliquotError) -> bool:
        """Whether the pool takes back others' leases for it: then its own waits for them.

        A Workload of several gangs would hold one while it waits for another, and two such could wait for one another.
        """
        if len(gangs) != 1 or not isinstance(error, Refused) or isinstance(error, NeverFits):
            return False
        request = await self._request(workload, gangs[0])
        lease = await self._granter.make_room(f"{workload.metadata.namespace}/{gangs[0].gang}", request)
        if lease is None:
            return False
        if lease.holding:
            await self._ready(workload, {lease.gang: lease})
        else:
            await self._set(workload, "Pending", "the pool makes room for it")
        return True

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
                check.update(state=state, message=message[:1024], lastTransitionTime=now_text())
                check.pop("podSetUpdates", None)
                check.pop("requeueAfterSeconds", None)
                if updates:
                    check["podSetUpdates"] = updates
                if state == "Retry":
                    check["requeueAfterSeconds"] = kueue.RETRY_AFTER_S
            await self._client.put(f"{path}/status", found)
        except (KubeConflict, KubeNotFound):
            self.loop.touch(f"{meta.namespace}/{meta.name}")

    async def _let_go(self, leases: Mapping[str, KubeLease], why: str) -> None:
        for lease in leases.values():
            await self._granter.undo(lease, why)

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
                "lastTransitionTime": now_text(),
            }
            path = ADMISSION_CHECKS.path(name=check.metadata.name, subresource="status")
            try:
                await self._client.patch(path, {"status": {"conditions": [condition]}})
            except KubeError as error:
                log.log(level_of(error), "AdmissionCheck %s: %s", check.metadata.name, error.message)
