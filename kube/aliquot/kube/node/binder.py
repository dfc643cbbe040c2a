"""Ties a pod, its cgroup and its lease's slices together, before any of its containers runs.

Two ways lead here. A container that is about to start waits in `prepare`, which fails closed: without its limits in
force it does not start. And `reconcile` compares all pods of the node with what the agent has, again and again: pods
that were there before this process, limits that changed, pods that have gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from aliquot.client import AgentError
from aliquot.client.local import CgroupAttachment, LocalStatus
from aliquot.common.errors import AliquotError
from aliquot.kube.api.errors import KubeError
from aliquot.kube.core.pods import Assignment
from aliquot.kube.node.containers import Containers
from aliquot.kube.node.core.assignment import ASSIGNMENT_ANNOTATION, BadAssignment, read_assignment
from aliquot.kube.node.core.claimants import Claimants, Member
from aliquot.kube.node.identity import NotBound, decide, holders_of
from aliquot.kube.node.injection import place
from aliquot.kube.node.objects import Pod
from aliquot.kube.node.parts import NodeParts
from aliquot.kube.node.pod_resources import KUBELET_ERRORS
from aliquot.kube.node.records import Bound

log = logging.getLogger(__name__)

T = TypeVar("T")

PREPARE_S = 20.0
"""How long a container's start may take here: a kubelet waits for 30 s."""
AGAIN_S = 0.2
_TRIED_AGAIN = (NotBound, AgentError, KubeError, *KUBELET_ERRORS)


class NotPrepared(AliquotError):
    """A container can't have its limits, so it must not start."""


class Binder:
    """Use from one event loop."""

    def __init__(self, parts: NodeParts, *, prepare_s: float = PREPARE_S) -> None:
        self._node_names = {parts.node, *parts.pool_names}
        self._agent, self._resources, self._cluster = parts.agent, parts.resources, parts.cluster
        self._cgroups, self._injection = parts.cgroups, parts.injection
        self._records, self._reporting = parts.records, parts.reporting
        self._monotonic_s, self._prepare_s = parts.monotonic_s, prepare_s
        self._locks: dict[str, asyncio.Lock] = {}
        self.containers = Containers(parts)
        self._claimants = Claimants()

    def seen(self, pods: Mapping[str, Pod]) -> None:
        """All pods of the node, as they are told now: to be called with each change, in order."""
        self._reporting.pods = pods
        self._claimants.look(
            (pod.identity.uid, member)
            for pod in pods.values()
            if not pod.ended and (member := _named_by(pod)) is not None
        )

    # a container that is about to start

    async def prepare(self, units: Sequence[str]) -> None:
        """Have the limits of the container that was given these units in force. Raises `NotPrepared`."""

        async def once() -> None:
            pod = await self._pod_of(units)
            self._require_seen(pod)
            await self.bind(pod, units)

        await self.persist(once)

    async def persist(self, prepare: Callable[[], Awaitable[T]]) -> T:
        """Try until it is prepared, or can't be, or a kubelet would not wait any longer: then raises `NotPrepared`."""
        deadline_s = self._monotonic_s() + self._prepare_s
        while True:
            try:
                return await prepare()
            except (BadAssignment, *_TRIED_AGAIN) as error:
                final = isinstance(error, BadAssignment) or (isinstance(error, NotBound) and error.final)
                if final or self._monotonic_s() + AGAIN_S > deadline_s:
                    raise NotPrepared(_text(error)) from error
            await asyncio.sleep(AGAIN_S)

    async def bind(self, pod: Pod, units: Sequence[str]) -> None:
        """Tie a pod to the lease that its annotations name. Raises `NotBound`, `BadAssignment` and `AgentError`."""
        async with self._lock(pod):
            await self._bind(pod, await self._agent.status(), units)

    async def _pod_of(self, units: Sequence[str]) -> Pod:
        """The pod that was given these units. Raises `NotBound` and others of `_TRIED_AGAIN`."""
        held = await self._resources.held_since(self._monotonic_s())
        found = []
        for namespace, name in holders_of(units, held):
            pod = await self._look_up(namespace, name, units)
            if pod is not None and not pod.ended:
                found.append(pod)
        if not found:
            raise NotBound(
                "UnitsUnknown",
                "the kubelet does not say which pod holds the container's units; a container that only runs first "
                "can't be the only one of its pod to ask for them",
            )
        if len(found) > 1:
            names = ", ".join(str(pod.identity) for pod in found)
            raise NotBound("SeveralHolders", f"the kubelet says that several pods hold the same units: {names}")
        return found[0]

    async def _look_up(self, namespace: str, name: str, units: Sequence[str]) -> Pod | None:
        """The pod as it is now. With the API server away, one that was tied before, with these units, may start its
        containers again. Raises `KubeError`.
        """
        try:
            return await self._cluster.pod(namespace, name)
        except KubeError:
            where = place(units)
            for bound in self._records.all():
                if (bound.namespace, bound.name) == (namespace, name) and where in bound.places:
                    known = self._reporting.pods.get(bound.uid)
                    if known is not None:
                        return known
            raise

    # all pods

    async def reconcile(self, pods: Mapping[str, Pod]) -> None:
        """Compare all pods of the node with what the agent has. Raises `AgentError`."""
        status = await self._agent.status()
        for pod in pods.values():
            if ASSIGNMENT_ANNOTATION in pod.annotations and not pod.ended:
                async with self._lock(pod):
                    await self._reconcile(pod, status)
        for uid in self._locks.keys() - pods.keys():
            del self._locks[uid]
            self.containers.forget(uid)

    async def _reconcile(self, pod: Pod, status: LocalStatus) -> None:
        bound = self._records.of(pod.identity.uid)
        try:
            assignment = decide(pod.identity, self._node_names, pod.annotations, status.slices)
            attached = bound is not None and any(
                bound.cgroup in piece.cgroups and piece.lease_id == assignment.lease for piece in status.slices
            )
            if not attached or bound is None:
                await self._bind(pod, status)
                status = await self._agent.status()
            elif bound.user == 0 and not pod.users:
                await self._let_in(pod, bound)
            self.containers.check(pod)
        except NotBound as error:
            if error.word == "NoCgroup" or (error.word == "LeaseNotHere" and bound is None):
                return  # the kubelet, or the agent, has not got so far
            self._reporting.refused(pod, error.word, error.message)
        except (BadAssignment, AgentError) as error:
            self._reporting.refused(pod, "NotAttached", _text(error))
        else:
            self._reporting.enforced(pod, assignment, status)

    async def _let_in(self, pod: Pod, bound: Bound) -> None:
        """The pod does not say whom its containers run as: look."""
        users = self._cgroups.users(bound.cgroup) - {0}
        if users:
            await self._attach(pod, bound.lease_id, bound.member, bound.cgroup, max(users), ())

    # both

    async def _bind(self, pod: Pod, status: LocalStatus, units: Sequence[str] = ()) -> Assignment:
        """Raises `NotBound`, `BadAssignment` and `AgentError`."""
        assignment = decide(pod.identity, self._node_names, pod.annotations, status.slices)
        cgroup = self._cgroups.of_pod(pod.identity)
        self._require_free(pod, assignment)
        known = self._records.of(pod.identity.uid)
        user = max(pod.users, default=known.user if known is not None else 0)
        await self._attach(pod, assignment.lease, assignment.member, cgroup, user, units)
        return assignment

    def _require_seen(self, pod: Pod) -> None:
        """Read alone, an assignment says nothing of who had it first: what is told in order must have come as far."""
        member = _named_by(pod)
        if member is not None and not self._claimants.seen(pod.identity.uid, member):
            raise NotBound(
                "NotSeenYet", f"what the API server tells of this node's pods has not come to {pod.identity}"
            )

    def _require_free(self, pod: Pod, assignment: Assignment) -> None:
        """A member of a lease is one pod's: whoever came first keeps it as long as that pod is there."""
        member = (assignment.lease, assignment.member)
        known = self._records.of(pod.identity.uid)
        was_its = known is not None and (known.lease_id, known.member) == member
        for uid in () if was_its else self._claimants.others(pod.identity.uid, member):
            shown_by = self._reporting.pods[uid].identity
            raise NotBound(
                "AssignmentTaken",
                f"pods {shown_by} and {pod.identity} both show member {assignment.member} of lease {assignment.lease}; "
                f"it is {shown_by}'s, or nobody can say whose: assignments must not be copied",
            )
        for other in self._records.all():
            same = (other.lease_id, other.member) == (assignment.lease, assignment.member)
            if same and other.uid != pod.identity.uid and self._cgroups.exists(other.cgroup):
                raise NotBound(
                    "AssignmentTaken",
                    f"member {assignment.member} of lease {assignment.lease} is pod {other.pod}'s, "
                    f"not {pod.identity}'s: assignments must not be copied",
                )

    async def _attach(
        self, pod: Pod, lease_id: str, member: int, cgroup: str, user: int, units: Sequence[str]
    ) -> CgroupAttachment:
        """Raises `AgentError`."""
        identity = pod.identity
        known = self._records.of(identity.uid)
        places = dict.fromkeys(known.places if known is not None else ())
        if units:
            places[place(units)] = None
        # Written down first: what is attached must be known when it is to be given back.
        self._records.put(
            Bound(identity.namespace, identity.name, identity.uid, lease_id, member, cgroup, tuple(places), user)
        )
        attached = await self._agent.attach(lease_id, member, cgroup, user)
        if units:
            self._injection.fulfil(units, attached)
        if known is None:
            log.info("bound", extra={"pod": str(identity), "lease_id": lease_id, "tier": attached.tier.value})
        return attached

    def _lock(self, pod: Pod) -> asyncio.Lock:
        return self._locks.setdefault(pod.identity.uid, asyncio.Lock())


def _named_by(pod: Pod) -> Member | None:
    """The member that a pod shows; None: none that can be read."""
    try:
        found = read_assignment(pod.annotations)
    except BadAssignment:
        return None
    return (found.lease, found.member) if found is not None else None


def _text(error: BaseException) -> str:
    if isinstance(error, AliquotError):
        return error.message
    return f"the kubelet does not answer about its pods: {type(error).__name__}"
