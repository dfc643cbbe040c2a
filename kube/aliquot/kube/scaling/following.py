"""Keeps the picture: of the pool every few seconds, of this cluster's pods as they change."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from aliquot.client import AsyncPool, Lease, LeaseState, PoolError, Refused, Slice, SliceState
from aliquot.common.errors import AliquotError
from aliquot.common.request import parse_request
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeError
from aliquot.kube.api.informer import Informer
from aliquot.kube.core import names
from aliquot.kube.core.asking import request_text
from aliquot.kube.core.leases import is_ours
from aliquot.kube.core.remote_pods import pod_uid
from aliquot.kube.core.scaling.picture import Forecast, Held, Picture, PodLease, Waiting, asked_milli, models_of
from aliquot.kube.core.scaling.pods import PodFacts, RawOwnedPod, facts_of
from aliquot.kube.holding.requests import Requests

log = logging.getLogger(__name__)

_GONE: Final = frozenset({SliceState.GONE, SliceState.FAILED})
_NOTHING: Final = frozenset({LeaseState.UNSPECIFIED, LeaseState.QUEUED, LeaseState.ENDED})
_HOLDING: Final = tuple(state for state in LeaseState if state not in _NOTHING)
_PAGE: Final = 1000
_REST: Final = 10
_FORECAST_S: Final = 60.0


class Unknown(AliquotError):
    """Nothing recent enough is known to answer with."""

    reason = "UNKNOWN_NOW"


class PodsByOwner:
    """This cluster's pods that have to do with GPUs, by namespace and by whose they are."""

    def __init__(self, client: KubeClient) -> None:
        self._of_namespace: dict[str, dict[str, PodFacts]] = defaultdict(dict)
        self.informer: Informer[RawOwnedPod, PodFacts] = Informer(
            client, resources.PODS, RawOwnedPod, facts_of, on_change=self._changed
        )

    def of(self, namespace: str) -> Iterable[PodFacts]:
        """Those of a namespace."""
        return self._of_namespace.get(namespace, {}).values()

    def owned(self, namespace: str, owner: str) -> list[PodFacts]:
        """Those of an owner (`Deployment/web`) that have not ended."""
        return [one for one in self.of(namespace) if one.pod.owner.lower() == owner.lower() and not one.pod.over]

    def _changed(self, key: str, before: PodFacts | None, after: PodFacts | None) -> None:
        facts = after or before
        if facts is None:
            return
        of = self._of_namespace[facts.pod.namespace]
        if after is None:
            of.pop(key, None)
            if not of:
                self._of_namespace.pop(facts.pod.namespace, None)
        else:
            of[key] = after


class Follower:
    """See the module's docstring. `now_ms` is wall time.

    Args:
        every_s: how often the pool is asked.
        kept_s: for how long the last picture is answered from while the pool does not answer.
    """

    def __init__(
        self,
        pool: AsyncPool,
        pods: PodsByOwner,
        requests: Requests,
        scheduler: str,
        now_ms: Callable[[], int],
        *,
        every_s: float,
        kept_s: float,
    ) -> None:
        self.pods = pods
        self.every_s = every_s
        self.problem = "the pool has not been asked yet"
        """Why the picture is not brought up to date; empty: it is."""
        self.changed = asyncio.Condition()
        self.rounds = 0
        """Pictures so far; `changed` tells of each."""
        self._pool = pool
        self._requests = requests
        self._scheduler = scheduler
        self.now_ms = now_ms
        self._kept_ms = int(kept_s * 1000)
        self._picture: Picture | None = None
        self._running = _Ours()
        self._due_s = float("-inf")
        self._forecasts: tuple[Forecast, ...] | None = None
        self._forecast_due_s = float("-inf")

    def picture(self) -> Picture:
        """The last one. Raises Unknown where there is none, or none that is recent enough."""
        found = self._picture
        if found is None:
            raise Unknown(f"nothing is known yet: {self.problem}", hint="ask again in some seconds")
        age_ms = self.now_ms() - found.at_ms
        if age_ms > self._kept_ms:
            raise Unknown(f"nothing has been known for {age_ms // 1000} s: {self.problem}")
        return found

    async def run(self) -> None:
        """Follow until cancelled."""
        await self.pods.informer.synced.wait()
        while True:
            await self.look()
            await asyncio.sleep(self.every_s)

    async def look(self) -> None:
        """Take a picture; where that is not possible the last one stays."""
        try:
            taken = await self._take()
        except (PoolError, KubeError) as error:
            if error.message != self.problem:
                log.warning("the pool can't be looked at, autoscalers are answered as before: %s", error.message)
            self.problem = error.message
            return
        if self.problem:
            log.info("autoscalers are answered from the pool")
        self.problem = ""
        async with self.changed:
            self._picture = taken.remembering(self._picture)
            self.rounds += 1
            self.changed.notify_all()

    async def _take(self) -> Picture:
        now_s = asyncio.get_running_loop().time()
        at_ms = self.now_ms()
        queued = [lease async for lease in self._pool.leases(states=[LeaseState.QUEUED])]
        if now_s >= self._due_s:
            self._running = await self._list()
            # In a large pool at most a tenth of the time: what waits is told sooner than what is used.
            self._due_s = now_s + _REST * (asyncio.get_running_loop().time() - now_s)
        ours = _Ours(dict(self._running.leases), dict(self._running.of_pod), set(self._running.gangs))
        for lease in queued:
            ours.take(lease, self._requests.cluster)
        waiting = [_waiting(lease) for lease in queued]
        for facts in list(self.pods.informer):
            asks = facts.waits and facts.scheduler == self._scheduler
            if asks and facts.pod.uid not in ours.of_pod and (facts.pod.namespace, facts.gang) not in ours.gangs:
                pod = await self._pod(facts)
                if pod is not None:
                    waiting.append(pod)
        return Picture(at_ms, tuple(waiting), ours.leases, ours.of_pod, await self._expected(now_s))

    async def _expected(self, now_s: float) -> tuple[Forecast, ...] | None:
        """Forecasts, which change once an hour; None: the pool has none, or is older than they are."""
        if now_s < self._forecast_due_s:
            return self._forecasts
        try:
            found = await self._pool.forecast()
        except Refused as error:
            log.debug("no forecasts: %s", error.message)
            series = None
        else:
            known = [one for one in found.series if found.from_ms and one.hours]
            series = tuple(
                Forecast(one.kind, one.name, one.hours[0].start_ms, tuple(hour.milli for hour in one.hours))
                for one in known
            )
        self._forecasts = series or None
        self._forecast_due_s = now_s + _FORECAST_S
        return self._forecasts

    async def _list(self) -> _Ours:
        """This cluster's leases that hold something."""
        found, token = _Ours(), ""
        while True:
            page = await self._pool.leases_page(token, _PAGE, states=_HOLDING)
            for lease in page.items:
                found.take(lease, self._requests.cluster)
            token = page.next_token
            if not token:
                return found
            await asyncio.sleep(0)

    async def _pod(self, facts: PodFacts) -> Waiting | None:
        """A pod that waits: in Kubernetes' queue, as the pool has none for pods. None: in vain, whatever comes."""
        pod = facts.pod
        try:
            account = await self._requests.account(pod.namespace, pod.labels, facts.queue)
            request = parse_request(request_text(facts.asked))
        except KubeError:
            raise
        except AliquotError as error:
            log.debug("pod %s/%s waits in vain: %s", pod.namespace, pod.name, error.message)
            return None
        return Waiting(account.tenant, account.queue, "", models_of(request), asked_milli(request), pod.since_ms)


@dataclass(slots=True)
class _Ours:
    """Leases of this cluster, and whose they are."""

    leases: dict[str, PodLease] = field(default_factory=dict)
    of_pod: dict[str, str] = field(default_factory=dict)
    gangs: set[tuple[str, str]] = field(default_factory=set)

    def take(self, lease: Lease, cluster: str) -> None:
        """Add one, if it is this cluster's."""
        labels = lease.labels
        if not is_ours(labels, cluster):
            return
        namespace, gang = labels.get(names.LEASE_NAMESPACE, ""), labels.get(names.LEASE_GANG, "")
        self.leases[lease.lease_id] = PodLease(lease.lease_id, namespace, _held(lease))
        if gang:
            self.gangs.add((namespace, gang))
        uid = labels.get(names.LEASE_POD_UID, "") or pod_uid(gang)
        if uid:
            self.of_pod[uid] = lease.lease_id


def _waiting(lease: Lease) -> Waiting:
    try:
        request = parse_request(lease.gpu)
        models, share_milli = models_of(request), asked_milli(request, max(1, lease.gang_size))
    except AliquotError:  # it is another's, and told without what it asks for
        models, share_milli = (), 0
    return Waiting(lease.tenant, lease.queue, lease.pool, models, share_milli, lease.created_ms)


def _held(lease: Lease) -> dict[str, Held]:
    return {part.slice_id: _part(part) for part in lease.slices if part.state not in _GONE}


def _part(part: Slice) -> Held:
    return Held(
        part.member,
        part.device_model,
        part.share_milli,
        part.memory_bytes,
        part.observed_utilisation_percent,
        part.observed_bytes,
        part.observed_ms,
    )
