"""What the local socket answers: attaching processes, and what is here."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from aliquot.agent.attaching import Attacher
from aliquot.agent.core.accounting import DeviceUsage
from aliquot.agent.core.model import Intent, ProcessKey, Reservation
from aliquot.agent.core.reservations import status_of
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.local.errors import (
    LeaseNotHere,
    NotActive,
    NotPermitted,
    PidProtected,
    StillUsing,
    UidMismatch,
    WrongSecret,
)
from aliquot.agent.local.peer import Peer, target_of
from aliquot.agent.state import NodeState
from aliquot.agent.wire import DEVICE, Beside, device_report
from aliquot.common.ids import secret_sha256
from aliquot.v1 import local_pb2, types_pb2

log = logging.getLogger(__name__)

ACTIVE_WAIT_S = 5.0
"""How long an attach waits for a limit that is just being set."""
_LOOK_AGAIN_S = 0.02


class LocalService(msgspec.Struct, eq=False, kw_only=True):
    """Answers requests of identified peers. Raises `LocalError` and its kin. Use from one event loop.

    `protects(pid)`: whether a process may never belong to a lease. `set_again`: has limits of slices set once
    more, because a cgroup has come to their member.
    """

    state: NodeState
    attacher: Attacher
    protects: Callable[[int], bool]
    look: Callable[[str], Awaitable[DeviceUsage]]
    version: str
    set_again: Callable[[Sequence[Reservation]], None] = lambda records: None

    def info(self) -> local_pb2.LocalInfo:
        """Which node this is, and what its agent can't do."""
        return local_pb2.LocalInfo(
            node_id=self.state.node_id,
            node_name=self.state.name,
            agent_version=self.version,
            coordinator=self.state.coordinator,
            connected=self.state.connected,
            notes=[*self.state.conditions().values(), *self.state.happened],
        )

    def status(self, peer: Peer) -> local_pb2.LocalStatus:
        """Every device of this node, and the slices of the peer's leases: those that its user was the first to attach
        to. Root and the agent's own user see all slices. No secrets.
        """
        slices = []
        sees_all = peer.uid in (0, os.geteuid())
        shown = [
            record
            for record in self.state.book.holding()
            if sees_all or self.attacher.attachments.owner_of(record.spec.lease_id) == peer.uid
        ]
        leases = {record.spec.lease_id for record in shown}
        for record in shown:
            spec = record.spec
            actual = self.state.actual_of(spec.slice_id)
            device = self.state.devices.get(spec.device_uuid)
            pieces = device.usage.slices if device is not None and device.usage is not None else ()
            usage = next((piece for piece in pieces if piece.reservation.slice_id == spec.slice_id), None)
            slices.append(
                local_pb2.LocalSlice(
                    slice_id=spec.slice_id,
                    lease_id=spec.lease_id,
                    tenant=spec.tenant,
                    device_uuid=spec.device_uuid,
                    share_milli=spec.share_milli,
                    memory_bytes=spec.memory_bytes,
                    observed_bytes=usage.observed_bytes if usage is not None else None,
                    pids=[use.pid for use in usage.uses] if usage is not None else [],
                    tier=types_pb2.Tier.ValueType(actual.tier or 0),
                    status="QUARANTINED" if record.quarantined else status_of(record, actual).name,
                    member=spec.member,
                    lease_epoch=spec.lease_epoch,
                    cgroups=self.attacher.containment.full_names(spec.holder),
                )
            )
        devices = [
            DEVICE.message(device.info, Beside(device_report(device), self.attacher.limits.tiers_of(uuid)))
            for uuid, device in self.state.devices.items()
        ]
        acts = [
            local_pb2.LocalAct(
                at_ms=each.at_ms,
                act=each.decision.act.value,
                lease_id=each.decision.holder.lease_id,
                slice_id=each.decision.slice_id,
                device_uuid=each.decision.device_uuid,
                pid=each.decision.process.pid if each.decision.process is not None else 0,
                why=each.decision.why,
            )
            for each in self.state.acts
            if sees_all or each.decision.holder.lease_id in leases
        ]
        return local_pb2.LocalStatus(slices=slices, devices=devices, acts=acts)

    async def attach(self, peer: Peer, request: local_pb2.AttachRequest) -> local_pb2.AttachResponse:
        """Make a process, and what it starts from now on, part of a lease."""
        self._authenticate(request.lease_id, request.secret)
        records = self._running(request.lease_id, request.member)
        process = target_of(peer, request.pid, self.attacher.processes)
        if self.protects(process.pid):
            raise PidProtected(
                f"process {process.pid} is the agent, or init",
                hint="attach the program that uses the device, or its parent",
            )
        self._authorise(request.lease_id, peer)
        records = await self._when_active(request.lease_id, request.member, records)
        holder = records[0].spec.holder
        owner = self._uid_of(process, peer)
        placed = self.attacher.attach(process, holder, owner)
        variables, notes = self.attacher.environment(records, dict(request.environment), owner)
        return local_pb2.AttachResponse(
            environment=variables,
            slice_ids=[record.slice_id for record in records],
            containment=placed.kind.value,
            notes=[*([placed.note] if placed.note else []), *notes],
        )

    async def attach_cgroup(self, peer: Peer, request: local_pb2.AttachCgroupRequest) -> local_pb2.AttachCgroupResponse:
        """Make all processes of a cgroup that somebody else made part of a lease."""
        if peer.uid not in (0, os.geteuid()):
            raise NotPermitted(
                f"only root may attach a cgroup; you are uid {peer.uid}", hint="attach single processes, as yourself"
            )
        records = self._running(request.lease_id, request.member)
        holder = records[0].spec.holder
        item = self.attacher.containment.find_cgroup(request.cgroup, holder)
        if any(map(self.protects, self.attacher.containment.pids_in(item))):
            raise PidProtected(
                f"the agent, or init, is in {request.cgroup}", hint="name the cgroup of one job, not one above it"
            )
        if item.path not in self.attacher.containment.cgroups_attached(holder):
            self.attacher.attachments.attach_cgroup(item)
            log.info(
                "cgroup attached",
                extra={"lease_id": holder.lease_id, "member": holder.member, "cgroup": request.cgroup},
            )
            self.set_again(records)
        records = await self._when_active(request.lease_id, request.member, records)
        variables, notes = self.attacher.environment(records, dict(request.environment), request.uid)
        tiers = [self.state.actual_of(record.slice_id).tier for record in records]
        return local_pb2.AttachCgroupResponse(
            environment=variables,
            slice_ids=[record.slice_id for record in records],
            folders=self.attacher.folders(records),
            tier=types_pb2.Tier.ValueType(min((tier for tier in tiers if tier is not None), default=0)),
            notes=notes,
        )

    async def detach(self, peer: Peer, request: local_pb2.DetachRequest) -> local_pb2.DetachResponse:
        """Let the peer itself leave a lease, once it holds no device memory: a fresh look decides."""
        self._authenticate(request.lease_id, request.secret)
        self._authorise(request.lease_id, peer)
        for uuid in sorted({record.spec.device_uuid for record in self.state.book.of_lease(request.lease_id)}):
            try:
                usage = await self.look(uuid)
            except DeviceError as error:
                raise StillUsing(f"it can't be seen whether {uuid} is still in use: {error.message}") from error
            if any(use.process == peer.process for piece in usage.slices for use in piece.uses):
                raise StillUsing(
                    f"process {peer.process.pid} is still on {uuid}", hint="end it, or free its context first"
                )
        for item in self.attacher.attachments.of_process(request.lease_id, peer.process):
            self.attacher.containment.put_back(item)
        self.attacher.attachments.remove(request.lease_id, peer.process)
        return local_pb2.DetachResponse()

    # ----------------------------------------------------------------------------------------------------
    # checks

    def _authenticate(self, lease_id: str, secret: str) -> None:
        records = self._here(lease_id)
        digest = secret_sha256(secret)
        # Every slice is compared, so that the time taken says nothing about which of them matched.
        matches = [hmac.compare_digest(digest, record.spec.secret_sha256) for record in records]
        if not any(matches):
            raise WrongSecret(
                f"the secret is not that of lease {lease_id}",
                hint="use the secret from the answer that allocated the lease; the SDK and `aliquot run` do so",
            )

    def _here(self, lease_id: str) -> list[Reservation]:
        records = self.state.book.of_lease(lease_id)
        if not records:
            raise LeaseNotHere(
                f"lease {lease_id!r} has nothing on node {self.state.name}",
                hint="run on the node that its slices name; see `aliquot get`",
            )
        return records

    def _authorise(self, lease_id: str, peer: Peer) -> None:
        owner = self.attacher.attachments.owner_of(lease_id)
        if owner is not None and peer.uid not in (0, owner):
            raise UidMismatch(
                f"lease {lease_id} is in use by uid {owner}; you are uid {peer.uid}",
                hint="attach as the user that attached first, or as root",
            )

    def _running(self, lease_id: str, member: int) -> list[Reservation]:
        """The slices of a member's latest grant that may take processes."""
        of_lease = self._here(lease_id)
        mine = [record for record in of_lease if record.spec.member == member]
        if not mine:
            members = sorted({record.spec.member for record in of_lease})
            raise LeaseNotHere(
                f"member {member} of lease {lease_id} is not on this node; here: {members}",
                hint="name one of these members",
            )
        usable = [record for record in mine if record.intent is Intent.RUN and not record.quarantined]
        if not usable:
            why = "quarantined: the coordinator does not know it" if mine[0].quarantined else "being ended"
            raise LeaseNotHere(f"lease {lease_id} is {why}", hint="allocate a new lease")
        epoch = max(record.spec.lease_epoch for record in usable)
        return [record for record in usable if record.spec.lease_epoch == epoch]

    async def _when_active(self, lease_id: str, member: int, records: Sequence[Reservation]) -> list[Reservation]:
        deadline = asyncio.get_running_loop().time() + ACTIVE_WAIT_S
        while True:
            gone = [record.spec.device_uuid for record in records if self.attacher.limits.limited(record) is None]
            if not gone and all(self.state.actual_of(record.slice_id).limit_set for record in records):
                return list(records)
            if asyncio.get_running_loop().time() >= deadline:
                notes = [f"this node has no device {uuid} now" for uuid in gone]
                notes += [note for record in records for note in self.state.actual_of(record.slice_id).tier_notes]
                raise NotActive(f"the limits of lease {lease_id} are not set: {'; '.join(notes) or 'not yet'}")
            await asyncio.sleep(_LOOK_AGAIN_S)
            records = self._running(lease_id, member)

    def _uid_of(self, process: ProcessKey, peer: Peer) -> int:
        """Whose the lease becomes: the process's user, also where root attaches it."""
        if peer.uid != 0:
            return peer.uid
        return max(self.attacher.processes.uids_of(process.pid) or {0})
