"""What the local socket answers: attaching processes, and what is here."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence

from aliquot.agent.attachments import Attachments
from aliquot.agent.containment import Containment, ContainmentKind
from aliquot.agent.core.accounting import DeviceUsage
from aliquot.agent.core.model import Intent, ProcessKey, Reservation
from aliquot.agent.core.reservations import status_of
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.enforce.assembly import environment_of
from aliquot.agent.enforce.chooser import Chooser
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.local.environment import Granted, environment
from aliquot.agent.local.errors import LeaseNotHere, NotActive, StillUsing, UidMismatch, WrongSecret
from aliquot.agent.local.peer import Peer, target_of
from aliquot.agent.processes import Processes
from aliquot.agent.state import NodeState
from aliquot.agent.wire import device_report, device_to_wire
from aliquot.common.ids import secret_sha256
from aliquot.v1 import local_pb2, types_pb2

log = logging.getLogger(__name__)

ACTIVE_WAIT_S = 5.0
"""How long an attach waits for a limit that is just being set."""
_LOOK_AGAIN_S = 0.02


class LocalService:
    """Answers requests of identified peers. Raises `LocalError` and its kin. Use from one event loop."""

    def __init__(
        self,
        *,
        state: NodeState,
        containment: Containment,
        attachments: Attachments,
        chooser: Chooser,
        limits: LimitSetter,
        processes: Processes,
        look: Callable[[str], Awaitable[DeviceUsage]],
        socket_path: str,
        version: str,
    ) -> None:
        self._state = state
        self._containment = containment
        self._attachments = attachments
        self._chooser = chooser
        self._limits = limits
        self._processes = processes
        self._look = look
        self._socket_path = socket_path
        self._version = version

    def info(self) -> local_pb2.LocalInfo:
        """Which node this is, and what its agent can't do."""
        return local_pb2.LocalInfo(
            node_id=self._state.node_id,
            node_name=self._state.name,
            agent_version=self._version,
            coordinator=self._state.coordinator,
            connected=self._state.connected,
            notes=[*self._state.notes.values(), *self._state.happened],
        )

    def status(self) -> local_pb2.LocalStatus:
        """Every slice and device of this node; no secrets."""
        slices = []
        for record in self._state.book.holding():
            spec = record.spec
            actual = self._state.actual_of(spec.slice_id)
            device = self._state.devices.get(spec.device_uuid)
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
                )
            )
        devices = [
            device_to_wire(device.info, device_report(device), self._limits.tiers_of(uuid))
            for uuid, device in self._state.devices.items()
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
            for each in self._state.acts
        ]
        return local_pb2.LocalStatus(slices=slices, devices=devices, acts=acts)

    async def attach(self, peer: Peer, request: local_pb2.AttachRequest) -> local_pb2.AttachResponse:
        """Make a process, and what it starts from now on, part of a lease."""
        self._authenticate(request.lease_id, request.secret)
        records = self._running(request.lease_id, request.member)
        process = target_of(peer, request.pid, self._processes)
        self._authorise(request.lease_id, peer)
        records = await self._when_active(request.lease_id, request.member, records)
        holder = records[0].spec.holder
        owner = self._uid_of(process, peer)
        origin = self._processes.cgroup_of(process.pid) or ""
        before = self._containment.belonging(process.pid)
        # Registered before it is moved: whatever happens in between, it is known to be the lease's. What it belonged to
        # before it still belongs to, though what it starts from now on is not born into that one's cgroup.
        for other in before.holders if before is not None else ():
            if other != holder:
                self._attachments.follow(self._attachments.add(other, process, owner, origin), contained=False)
        added = self._attachments.add(holder, process, owner, origin)
        placed = self._containment.place(process, holder)
        if placed.kind is ContainmentKind.CGROUP:
            self._attachments.follow(added, contained=True)
        else:
            owns_session, owns_group = self._processes.alone_in(process)
            self._attachments.follow(added, owns_session=owns_session, owns_group=owns_group)
        variables, notes = environment(
            [granted for record in records if (granted := self._granted(record, request, owner)) is not None],
            dict(request.environment),
            self._socket_path,
        )
        log.info(
            "attached",
            extra={
                "lease_id": holder.lease_id,
                "member": holder.member,
                "pid": process.pid,
                "uid": owner,
                "containment": placed.kind.value,
            },
        )
        return local_pb2.AttachResponse(
            environment=variables,
            slice_ids=[record.slice_id for record in records],
            containment=placed.kind.value,
            notes=[*([placed.note] if placed.note else []), *notes],
        )

    async def detach(self, peer: Peer, request: local_pb2.DetachRequest) -> local_pb2.DetachResponse:
        """Let the peer itself leave a lease, once it holds no device memory: a fresh look decides."""
        self._authenticate(request.lease_id, request.secret)
        self._authorise(request.lease_id, peer)
        for uuid in sorted({record.spec.device_uuid for record in self._state.book.of_lease(request.lease_id)}):
            try:
                usage = await self._look(uuid)
            except DeviceError as error:
                raise StillUsing(f"it can't be seen whether {uuid} is still in use: {error.message}") from error
            if any(use.process == peer.process for piece in usage.slices for use in piece.uses):
                raise StillUsing(
                    f"process {peer.process.pid} is still on {uuid}", hint="end it, or free its context first"
                )
        for item in self._attachments.of_process(request.lease_id, peer.process):
            self._containment.put_back(item)
        self._attachments.remove(request.lease_id, peer.process)
        return local_pb2.DetachResponse()

    # ----------------------------------------------------------------------------------------------------
    # checks

    def _authenticate(self, lease_id: str, secret: str) -> None:
        records = self._state.book.of_lease(lease_id)
        if not records:
            raise LeaseNotHere(
                f"lease {lease_id!r} has nothing on node {self._state.name}",
                hint="run on the node that its slices name; see `aliquot get`",
            )
        digest = secret_sha256(secret)
        # Every slice is compared, so that the time taken says nothing about which of them matched.
        matches = [hmac.compare_digest(digest, record.spec.secret_sha256) for record in records]
        if not any(matches):
            raise WrongSecret(
                f"the secret is not that of lease {lease_id}",
                hint="use the secret from the answer that allocated the lease; the SDK and `aliquot run` do so",
            )

    def _authorise(self, lease_id: str, peer: Peer) -> None:
        owner = self._attachments.owner_of(lease_id)
        if owner is not None and peer.uid not in (0, owner):
            raise UidMismatch(
                f"lease {lease_id} is in use by uid {owner}; you are uid {peer.uid}",
                hint="attach as the user that attached first, or as root",
            )

    def _running(self, lease_id: str, member: int) -> list[Reservation]:
        """The slices of a member's latest grant that may take processes."""
        of_lease = self._state.book.of_lease(lease_id)
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
            gone = [record.spec.device_uuid for record in records if self._limits.limited(record) is None]
            if not gone and all(self._state.actual_of(record.slice_id).limit_set for record in records):
                return list(records)
            if asyncio.get_running_loop().time() >= deadline:
                notes = [f"this node has no device {uuid} now" for uuid in gone]
                notes += [note for record in records for note in self._state.actual_of(record.slice_id).tier_notes]
                raise NotActive(f"the limits of lease {lease_id} are not set: {'; '.join(notes) or 'not yet'}")
            await asyncio.sleep(_LOOK_AGAIN_S)
            records = self._running(lease_id, member)

    def _uid_of(self, process: ProcessKey, peer: Peer) -> int:
        """Whose the lease becomes: the process's user, also where root attaches it."""
        if peer.uid != 0:
            return peer.uid
        return max(self._processes.uids_of(process.pid) or {0})

    def _granted(self, record: Reservation, request: local_pb2.AttachRequest, uid: int) -> Granted | None:
        limited = self._limits.limited(record)
        tier = self._state.actual_of(record.slice_id).tier
        enforcer = self._chooser.of(tier) if tier is not None else None
        if limited is None or tier is None or enforcer is None:
            return None
        variables = environment_of(enforcer, limited, dict(request.environment), uid)
        return Granted(record.spec, limited.device, tier, variables)
