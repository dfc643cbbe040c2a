"""What the kubelet says about which pod holds which units. It allows few questions, so answers are shared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc

from aliquot.kube.node.channels import unix_channel
from aliquot.kube.node.core.resources import PERCENT_RESOURCE
from aliquot.kube.node.protos import podresources_pb2 as pb
from aliquot.kube.node.protos import podresources_pb2_grpc as rpc

Held = Mapping[tuple[str, str], frozenset[str]]
"""Units by pod (namespace, name)."""

INTERVAL_S = 1.0
"""The shortest time between two questions: a kubelet answers a few dozen in a burst and then none."""
TIMEOUT_S = 5.0
MAX_BYTES = 16 << 20


class PodResources:
    """Use from one event loop."""

    def __init__(self, socket: Path, monotonic_s: Callable[[], float]) -> None:
        self._socket = socket
        self._monotonic_s = monotonic_s
        self._lock = asyncio.Lock()
        self._asked_s = self._answered_s = float("-inf")
        self._held: Held = {}

    async def held_since(self, moment_s: float) -> Held:
        """Who holds what, asked of the kubelet at or after this moment of the monotonic clock.

        Raises `grpc.aio.AioRpcError` and `TimeoutError`.
        """
        while self._answered_s < moment_s:
            async with self._lock:  # who waits here has the answer of who went first, if it is new enough
                if self._answered_s >= moment_s:
                    break
                wait_s = self._asked_s + INTERVAL_S - self._monotonic_s()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                asked_s = self._asked_s = self._monotonic_s()
                self._held = await self._ask()
                self._answered_s = asked_s
        return self._held

    async def _ask(self) -> Held:
        async with unix_channel(self._socket, max_bytes=MAX_BYTES) as channel:
            stub = rpc.PodResourcesListerStub(channel)
            answer: pb.ListPodResourcesResponse = await stub.List(pb.ListPodResourcesRequest(), timeout=TIMEOUT_S)
        found: dict[tuple[str, str], frozenset[str]] = {}
        for pod in answer.pod_resources:
            units = frozenset(
                unit
                for container in pod.containers
                for device in container.devices
                if device.resource_name == PERCENT_RESOURCE
                for unit in device.device_ids
            )
            # One that has ended may still be listed beside the one that was made again by its name.
            if units:
                found[pod.namespace, pod.name] = found.get((pod.namespace, pod.name), frozenset()) | units
        return found


KUBELET_ERRORS = (grpc.aio.AioRpcError, TimeoutError, OSError)
