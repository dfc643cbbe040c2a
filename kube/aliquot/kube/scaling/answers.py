"""One place that answers whoever asks, by the picture and by what the asking namespace may know."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from aliquot.common.errors import AliquotError
from aliquot.kube.core.scaling.selectors import Selector
from aliquot.kube.core.scaling.signals import Scope, Signal, value_milli
from aliquot.kube.core.scaling.triggers import Trigger
from aliquot.kube.core.scaling.usage import Reading, reading
from aliquot.kube.holding.requests import Requests
from aliquot.kube.scaling.following import Follower, Unknown


class NotYours(AliquotError):
    """Figures that are not this namespace's to know."""

    reason = "NOT_YOURS"


class Answers:
    """What autoscalers are told.

    A namespace is told of the tenants that its pods have by the rules, and of all below them; everybody's figures only
    where `pool_readers` name it.
    """

    def __init__(self, follower: Follower, requests: Requests, pool_readers: Sequence[str] = ()) -> None:
        self.follower = follower
        self._requests = requests
        self._pool_readers = tuple(pool_readers)

    def check(self, namespace: str, trigger: Trigger) -> None:
        """Raises NotYours. Asks nobody."""
        if trigger.whole_pool and not any(fnmatchcase(namespace, one) for one in self._pool_readers):
            raise NotYours(
                f"namespace {namespace} may not ask for everybody's figures",
                hint="leave out scope, or have an administrator name it in scaling_pool_readers",
            )

    async def waiting(
        self, namespace: str, signal: Signal, selector: Selector, *, whole_pool: bool = False
    ) -> tuple[int, int]:
        """A figure in thousandths, and when it was so. Raises Unknown, NotOffered, SelectorError, KubeError."""
        picture = self.follower.picture()
        scope = Scope() if whole_pool else Scope(await self._requests.tenants(namespace))
        return value_milli(picture, signal, scope, selector), picture.at_ms

    def pods(self, namespace: str, name: str, selector: Selector, metric: str) -> list[tuple[str, Reading]]:
        """Values of the pods that are chosen and of which something is known, by name. Raises Unknown."""
        picture, now_ms = self.follower.picture(), self.follower.now_ms()
        found = []
        for facts in self.follower.pods.of(namespace):
            pod = facts.pod
            if pod.over or name not in ("*", pod.name) or not selector.matches(pod.labels):
                continue
            value = reading(picture, pod, metric, now_ms)
            if value is not None:
                found.append((pod.name, value))
        return sorted(found, key=lambda one: one[0])

    async def triggered(self, namespace: str, trigger: Trigger) -> int:
        """What a trigger measures, in thousandths: of pods, the sum over an owner's.

        A pod of which nothing is known counts as one that is right on target, so that it changes nothing. Raises
        Unknown, also where nothing is known of any; NotYours, NotOffered, SelectorError, KubeError.
        """
        self.check(namespace, trigger)
        signal = trigger.signal
        if signal is not None:
            value, _ = await self.waiting(namespace, signal, trigger.selector, whole_pool=trigger.whole_pool)
            return value
        picture, now_ms = self.follower.picture(), self.follower.now_ms()
        readings = [
            reading(picture, facts.pod, trigger.metric, now_ms)
            for facts in self.follower.pods.owned(namespace, trigger.owner)
        ]
        if readings and not any(readings):
            raise Unknown(f"nothing is known of what the {len(readings)} pods of {trigger.owner} use")
        return sum(trigger.target_milli if one is None else one.milli for one in readings)
