"""What belongs together when reconciling: a pod and its lease, a gang's pods and its lease.

Reconciling is a function of both sides; of each subject alone it says the same as of all at once. So a change costs its
own subject, and a pass over everything goes in portions.
"""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.kube.core.leases import KubeLease
from aliquot.kube.core.pods import PodRecord
from aliquot.kube.holding.book import LeaseBook
from aliquot.kube.holding.pods import PodIndex

Subject = tuple[str, str]
"""`("", uid)` of a pod, or `(namespace, name)` of a gang."""


def of_pod(pod: PodRecord) -> Subject:
    """A pod's subject."""
    return (pod.namespace, pod.gang.name) if pod.gang is not None else ("", pod.uid)


def of_lease(lease: KubeLease) -> Subject:
    """A lease's subject."""
    return (lease.namespace, lease.gang) if lease.gang else ("", lease.pod_uid)


class Subjects:
    """Both sides of each subject."""

    def __init__(self, book: LeaseBook, pods: PodIndex, lost: dict[str, KubeLease]) -> None:
        self._book = book
        self._pods = pods
        self._lost = lost

    def every(self) -> set[Subject]:
        """All that holds or uses something."""
        found = {of_lease(lease) for lease in self._book}
        found.update(of_pod(pod) for pod in self._pods if pod.lease_id)
        return found

    def sides(self, subjects: Iterable[Subject]) -> tuple[list[PodRecord], list[KubeLease]]:
        """The pods and the leases of some."""
        pods: list[PodRecord] = []
        leases: dict[str, KubeLease] = {}
        for namespace, name in subjects:
            if namespace:
                some = self._pods.of_gang(namespace, name)
                held = self._book.of_gang(namespace, name)
            else:
                one = self._pods.by_uid(name)
                some = [] if one is None else [one]
                held = self._book.of_pod(name)
            pods += some
            if held is not None:
                leases[held.lease_id] = held
            for pod in some:
                lease = self._book.get(pod.lease_id) or self._lost.get(pod.lease_id)
                if lease is not None:
                    leases[lease.lease_id] = lease
        return pods, list(leases.values())
