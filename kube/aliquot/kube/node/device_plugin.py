"""The device plugin of `aliquot.dev/gpu-percent`, in which admission has counted whatever pods ask for.

Units only count: the kubelet gives them out by itself, before it says for whom. What makes a container's part of a
device its own happens in `PreStartContainer`, which each of its starts waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import grpc

from aliquot.common.errors import AliquotError
from aliquot.kube.node.channels import listen
from aliquot.kube.node.core.resources import NOTHING, PERCENT_RESOURCE, Advertised, unit_names
from aliquot.kube.node.injection import Injection
from aliquot.kube.node.protos import deviceplugin_pb2 as pb
from aliquot.kube.node.protos import deviceplugin_pb2_grpc as rpc

log = logging.getLogger(__name__)

OPTIONS = pb.DevicePluginOptions(pre_start_required=True)
STOP_S = 2.0


class DevicePlugin(rpc.DevicePluginServicer):
    """Serves the units. `prepare(units)` returns when the limits of a container with these units are in
    force, or raises `AliquotError`: then the container does not start, and the kubelet tries again.
    """

    socket_name = f"{PERCENT_RESOURCE.replace('.dev/', '-')}.sock"
    """In the kubelet's folder."""

    def __init__(self, injection: Injection, prepare: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        self._injection = injection
        self._prepare = prepare
        self._advertised = NOTHING
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    def advertise(self, advertised: Advertised) -> None:
        """From now on there is this much."""
        if advertised != self._advertised:
            self._advertised = advertised
            self._wake()

    async def serve(self, socket: Path) -> None:
        """Listen on a socket, in place of what is there. Raises `OSError`, `RuntimeError`."""
        await self.close()
        self._server = await listen(socket, rpc.add_DevicePluginServicer_to_server, self)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            server, self._server = self._server, None
            self._wake()
            await server.stop(STOP_S)

    # the kubelet's calls; their names are Kubernetes'

    async def GetDevicePluginOptions(  # noqa: N802
        self, request: pb.Empty, context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions]
    ) -> pb.DevicePluginOptions:
        """Each start of a container asks us first."""
        return OPTIONS

    async def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse]
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """All units, again whenever they change."""
        server = self._server
        while server is self._server:
            changed, units = self._changed, unit_names(self._advertised.percent)
            yield pb.ListAndWatchResponse(
                devices=[pb.Device(ID=name, health="Healthy" if well else "Unhealthy") for name, well in units]
            )
            await changed.wait()

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse]
    ) -> pb.AllocateResponse:
        """Where a container with these units will find what is put there before it starts."""
        answers = [self._injection.promise(each.devices_ids) for each in request.container_requests]
        return pb.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self,
        request: pb.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        """Have the container's limits set; what goes wrong is an event of its pod."""
        try:
            await self._prepare(list(request.devices_ids))
        except AliquotError as error:
            log.warning("a container may not start: %s", error.message)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"aliquot: {error.message}")
        return pb.PreStartContainerResponse()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
