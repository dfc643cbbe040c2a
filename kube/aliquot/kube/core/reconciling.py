"""Desired against actual: which leases nothing needs any more, and which pods run without one.

Pods say what should be held, leases what is. Both sides are seen late and in any order, after any restart. So what is
seen only decides what to look at: `Release` is for what the API server itself has said is over (a pod deleted or
ended), `Look` for what may merely not have been seen yet, and whoever acts on it asks the API server first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from aliquot.kube.core.leases import KubeLease
from aliquot.kube.core.pods import PodRecord


@dataclass(frozen=True, slots=True)
class Release:
    """End a lease: what it was for is over."""

    lease_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the API server for these pods, and end the lease unless one of them uses it."""

    lease_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Delete a pod that is bound and has no lease any more: it may not go on."""

    namespace: str
    name: str
    uid: str
    lease_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the pool for a lease that pods say they have, and that is not known here: it may have ended long ago."""

    lease_id: str


Action = Release | Look | Evict | Ask


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may be under way, in milliseconds."""

    unbound_ms: int = 60_000
    """A lease whose pod is not bound. Longer than any bind may take."""
    gang_ms: int = 300_000
    """A gang's lease of which not all members are bound; and one for which the pool makes room."""

    def for_pod(self, lease: KubeLease) -> int:
        """How long a single pod's lease may be without its pod being bound, in milliseconds."""
        return self.gang_ms if lease.makes_room else self.unbound_ms


def reconcile(
    pods: Iterable[PodRecord],
    leases: Iterable[KubeLease],
    now_ms: int,
    *,
    under_way: AbstractSet[str] = frozenset(),
    deleted: Container[str] = frozenset(),
    patience: Patience | None = None,
) -> list[Action]:
    """What to do, in a fixed order.

    Args:
        pods: ours, as far as they are seen.
        leases: ours, live ones and those that ended lately.
        now_ms: the time, by the clock of the leases' `granted_ms`.
        under_way: uids of pods, and keys of gangs, that are being bound here now.
        deleted: uids of pods that the API server has said are gone.
        patience: how long things may be under way.
    """
    patience = patience or Patience()
    by_uid: dict[str, PodRecord] = {}
    users: dict[str, list[PodRecord]] = {}
    gangs: dict[tuple[str, str], list[PodRecord]] = {}
    for pod in pods:
        by_uid[pod.uid] = pod
        if pod.lease_id and pod.node:
            users.setdefault(pod.lease_id, []).append(pod)
        if pod.gang is not None:
            gangs.setdefault((pod.namespace, pod.gang.name), []).append(pod)
    actions: list[Action] = []
    known: dict[str, KubeLease] = {}
    for lease in sorted(leases, key=lambda lease: lease.lease_id):
        known[lease.lease_id] = lease
        if not lease.live or lease.state == "RELEASING":
            continue
        if lease.gang:
            members = gangs.get((lease.namespace, lease.gang), [])
            found = _of_gang(lease, members, users.get(lease.lease_id, []), now_ms, under_way, patience)
        else:
            found = _of_pod(lease, by_uid.get(lease.pod_uid), now_ms, under_way, patience)
            if isinstance(found, Look) and lease.pod_uid in deleted:
                found = Release(lease.lease_id, "its pod was deleted")
        if found is not None:
            actions.append(found)
    actions += _evictions(users, known)
    return actions


def _of_pod(
    lease: KubeLease, pod: PodRecord | None, now_ms: int, under_way: AbstractSet[str], patience: Patience
) -> Action | None:
    if lease.pod_uid in under_way:
        return None
    if lease.state == "PREEMPTING":
        return None
    if lease.state == "QUEUED" and not lease.makes_room:
        # A pod is never granted elsewhere later: it is made anew, by whatever made it.
        return Release(lease.lease_id, "it was taken back")
    if pod is None:
        return Look(lease.lease_id, "its pod is not known")
    if pod.over:
        return Release(lease.lease_id, f"its pod has ended ({pod.phase})")
    if pod.node and pod.lease_id != lease.lease_id:
        return Look(lease.lease_id, "its pod is bound under another lease")
    if not pod.node and now_ms - lease.granted_ms > patience.for_pod(lease):
        return Look(lease.lease_id, "its pod was not bound")
    return None


def _of_gang(
    lease: KubeLease,
    members: Sequence[PodRecord],
    bound: Sequence[PodRecord],
    now_ms: int,
    under_way: AbstractSet[str],
    patience: Patience,
) -> Action | None:
    if f"{lease.namespace}/{lease.gang}" in under_way:
        return None
    if lease.state == "QUEUED" and lease.owner == "gang" and not lease.waits:
        return Release(lease.lease_id, "it was taken back")
    if lease.owner != "gang" or lease.state == "PREEMPTING":
        return None  # somebody else's to end: Kueue's Workload, an ElasticJob
    if any(not pod.over for pod in bound):
        using = {pod.member for pod in bound}
        if len(using) < lease.size and now_ms - lease.granted_ms > patience.gang_ms:
            waiting = any(not pod.node and not pod.over for pod in members)
            if waiting:
                return Look(lease.lease_id, "not all members of its gang were bound")
        return None
    if bound or (members and all(pod.over for pod in members)):
        if all(pod.over for pod in members):
            return Release(lease.lease_id, "the pods of its gang have ended")
        return None
    if not members:
        return Look(lease.lease_id, "no pod of its gang is known")
    if now_ms - lease.granted_ms > patience.gang_ms:
        return Look(lease.lease_id, "no member of its gang was bound")
    return None


def _evictions(users: Mapping[str, Sequence[PodRecord]], known: Mapping[str, KubeLease]) -> list[Action]:
    """Pods whose lease has ended, or is being taken back."""
    found: list[Action] = []
    for lease_id in sorted(users):
        lease = known.get(lease_id)
        if lease is None:
            if any(not pod.over and not pod.deleting for pod in users[lease_id]):
                found.append(Ask(lease_id))
            continue
        if lease.holding or (lease.live and lease.owner == "job"):
            continue
        why = f"its lease ended ({lease.end_reason})" if not lease.live else f"its lease is {lease.state}"
        found += [
            Evict(pod.namespace, pod.name, pod.uid, lease_id, why)
            for pod in sorted(users[lease_id], key=lambda pod: pod.uid)
            if not pod.over and not pod.deleting
        ]
    return found
