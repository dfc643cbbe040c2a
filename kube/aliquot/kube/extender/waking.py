"""Has pods that wait asked about again when room became free that their scheduler knows nothing of.

A stock scheduler tries a pod again when something in its cluster has changed that may help, else every five minutes.
A lease that ends is nothing of its cluster: it may be of somebody who has no pods, or end a moment after its pod, when
the pod that waits was just tried. So whoever was refused, and was not asked about since, gets an annotation: to the
scheduler that is a change of the pod.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final

from aliquot.common.latest import Latest
from aliquot.kube.api.client import MERGE, KubeClient
from aliquot.kube.api.errors import KubeRefused, KubeUnavailable, level_of
from aliquot.kube.api.resources import PODS
from aliquot.kube.core.names import ROOM
from aliquot.kube.core.shapes import RawPod

log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
"""What the scheduler tries by itself within this time needs no help."""
_AT_ONCE: Final = 32
"""Pods that are woken each time; when they have been tried, it is the next ones' turn."""
_KEPT: Final = 20_000


@dataclass(slots=True)
class _Waiting:
    namespace: str
    name: str
    priority: int
    asked_at: float


class Waker:
    """See the module's docstring. `run` works until cancelled."""

    def __init__(self, client: KubeClient, *, pause_s: float = _PAUSE_S, at_once: int = _AT_ONCE) -> None:
        self.woken = 0
        self._client = client
        self._pause_s = pause_s
        self._at_once = at_once
        self._waiting: Latest[str, _Waiting] = Latest(_KEPT)
        """Who was refused, by uid."""
        self._freed_at = 0.0
        self._freed = asyncio.Event()

    def refused(self, pod: RawPod, asked_at: float) -> None:
        """No node could take this pod, by what was known when it was asked about (the event loop's time)."""
        meta = pod.metadata
        self._waiting[meta.uid] = _Waiting(meta.namespace, meta.name, pod.spec.priority or 0, asked_at)

    def forget(self, uid: str) -> None:
        """This pod waits for nothing more."""
        self._waiting.pop(uid, None)

    def freed(self) -> None:
        """Room may have become free."""
        self._freed_at = asyncio.get_running_loop().time()
        self._freed.set()

    async def run(self) -> None:
        """Wake those who wait, most urgent first."""
        while True:
            await self._freed.wait()
            self._freed.clear()
            while True:
                await asyncio.sleep(self._pause_s)
                left = [(uid, one) for uid, one in self._waiting.items() if one.asked_at <= self._freed_at]
                if not left:
                    break
                left.sort(key=lambda item: (-item[1].priority, item[1].asked_at))
                await asyncio.gather(*(self._wake(uid, one) for uid, one in left[: self._at_once]))

    async def _wake(self, uid: str, one: _Waiting) -> None:
        before, one.asked_at = one.asked_at, asyncio.get_running_loop().time()
        patch = {"metadata": {"uid": uid, "annotations": {ROOM: str(time.time_ns() // 1_000_000)}}}
        try:
            await self._client.patch(PODS.path(one.namespace, one.name), patch, MERGE)
            self.woken += 1
        except KubeUnavailable as error:
            one.asked_at = before
            log.warning("pod %s/%s could not be woken: %s", one.namespace, one.name, error.message)
        except KubeRefused as error:
            # It is gone, made again under its name, or may not be written: it must not take others' turns for ever.
            self.forget(uid)
            log.log(level_of(error), "pod %s/%s is not woken: %s", one.namespace, one.name, error.message)
