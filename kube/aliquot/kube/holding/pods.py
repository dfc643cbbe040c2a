"""Our pods as an informer keeps them, by uid and by gang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from aliquot.common.latest import Latest
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.informer import SILENCE_S, Informer
from aliquot.kube.core.pods import PodRecord, flatten
from aliquot.kube.core.shapes import RawPod

_DELETED_KEPT: Final = 20_000


class PodIndex:
    """Pods of one scheduler name. `run` follows them."""

    def __init__(self, client: KubeClient, scheduler: str, *, silence_s: float = SILENCE_S) -> None:
        self.on_change: list[Callable[[PodRecord | None, PodRecord | None], None]] = []
        """Told `(before, after)` of each change."""
        self._by_uid: dict[str, str] = {}
        self._by_gang: dict[tuple[str, str], set[str]] = {}
        self.deleted: Latest[str, None] = Latest(_DELETED_KEPT)
        """Uids of pods that the API server has said, lately, are gone: a uid never comes back."""
        self.informer: Informer[RawPod, PodRecord] = Informer(
            client,
            resources.PODS,
            RawPod,
            flatten,
            fields=f"spec.schedulerName={scheduler}",
            on_change=self._changed,
            silence_s=silence_s,
        )

    def __iter__(self) -> Iterator[PodRecord]:
        return iter(list(self.informer))

    def __len__(self) -> int:
        return len(self.informer)

    async def run(self) -> None:
        """Follow until cancelled."""
        await self.informer.run()

    def by_uid(self, uid: str) -> PodRecord | None:
        """One pod."""
        return self.informer.get(self._by_uid.get(uid, ""))

    def of_gang(self, namespace: str, gang: str) -> list[PodRecord]:
        """The pods of a gang."""
        found = (self.informer.get(key) for key in self._by_gang.get((namespace, gang), ()))
        return [pod for pod in found if pod is not None]

    def _changed(self, key: str, before: PodRecord | None, after: PodRecord | None) -> None:
        if before is not None and (after is None or after.uid != before.uid):
            self._by_uid.pop(before.uid, None)
            self.deleted[before.uid] = None
        if before is not None and before.gang is not None:
            members = self._by_gang.get((before.namespace, before.gang.name), set())
            members.discard(key)
            if not members:
                self._by_gang.pop((before.namespace, before.gang.name), None)
        if after is not None:
            self._by_uid[after.uid] = key
            if after.gang is not None:
                self._by_gang.setdefault((after.namespace, after.gang.name), set()).add(key)
        for tell in self.on_change:
            tell(before, after)
