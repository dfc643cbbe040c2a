"""The two sockets of a driver: the kubelet finds one in its folder of registrations, which names the other.

The kubelet looks into that folder when it starts, and follows it; it removes nothing there. So both sockets stay, and a
kubelet that restarts finds them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc

from aliquot.common.errors import AliquotError
from aliquot.kube.core.claims import DRIVER
from aliquot.kube.node.channels import listen
from aliquot.kube.node.protos import dra_pb2 as pb
from aliquot.kube.node.protos import dra_pb2_grpc as rpc
from aliquot.kube.node.protos import pluginregistration_pb2 as registration_pb
from aliquot.kube.node.protos import pluginregistration_pb2_grpc as registration_rpc

log = logging.getLogger(__name__)

TYPE = "DRAPlugin"
VERSIONS = ("v1.DRAPlugin",)
STOP_S = 2.0


class DraPlugin(rpc.DRAPluginServicer):
    """`prepare` returns when a claim's limits are in force, or raises `AliquotError`: then its pod does not start, and
    the kubelet asks again. `unprepare` likewise.
    """

    def __init__(
        self,
        prepare: Callable[[pb.Claim], Awaitable[Sequence[pb.Device]]],
        unprepare: Callable[[pb.Claim], Awaitable[None]],
    ) -> None:
        self._prepare = prepare
        self._unprepare = unprepare
        self._servers: list[grpc.aio.Server] = []
        self.registrar = Registrar()

    async def serve(self, plugins: Path, registry: Path) -> None:
        """Listen in the kubelet's folders of plugins and of registrations. Raises `OSError`, `RuntimeError`."""
        own, announced = plugins / DRIVER / "dra.sock", registry / f"{DRIVER}-reg.sock"
        for path in (own, announced):
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        self.registrar.endpoint = str(own)
        self._servers.append(await listen(own, rpc.add_DRAPluginServicer_to_server, self))
        # Announced last: whoever finds it may call at once.
        announce = registration_rpc.add_RegistrationServicer_to_server
        self._servers.append(await listen(announced, announce, self.registrar))

    async def close(self) -> None:
        """Stop listening."""
        while self._servers:
            await self._servers.pop().stop(STOP_S)

    # the kubelet's calls; their names are Kubernetes'

    async def NodePrepareResources(  # noqa: N802
        self,
        request: pb.NodePrepareResourcesRequest,
        context: grpc.aio.ServicerContext[pb.NodePrepareResourcesRequest, pb.NodePrepareResourcesResponse],
    ) -> pb.NodePrepareResourcesResponse:
        """Each claim by itself: devices, or why not."""
        answers = await asyncio.gather(*map(self._prepared, request.claims))
        return pb.NodePrepareResourcesResponse(
            claims={claim.uid: answer for claim, answer in zip(request.claims, answers, strict=True)}
        )

    async def NodeUnprepareResources(  # noqa: N802
        self,
        request: pb.NodeUnprepareResourcesRequest,
        context: grpc.aio.ServicerContext[pb.NodeUnprepareResourcesRequest, pb.NodeUnprepareResourcesResponse],
    ) -> pb.NodeUnprepareResourcesResponse:
        """Each claim by itself."""
        response = pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            try:
                await self._unprepare(claim)
                response.claims[claim.uid].error = ""
            except (AliquotError, OSError) as error:
                log.warning("claim %s/%s is not unprepared: %s", claim.namespace, claim.name, error)
                response.claims[claim.uid].error = f"aliquot: {error}"
        return response

    async def _prepared(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        try:
            devices = await self._prepare(claim)
        except (AliquotError, OSError) as error:
            text = error.message if isinstance(error, AliquotError) else str(error)
            log.warning("claim %s/%s is not prepared: %s", claim.namespace, claim.name, text)
            return pb.NodePrepareResourceResponse(error=f"aliquot: {text}")
        return pb.NodePrepareResourceResponse(devices=devices)


class Registrar(registration_rpc.RegistrationServicer):
    """Says who we are, and hears whether the kubelet takes us."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.problem = "not registered with the kubelet yet"
        """Empty: it is."""

    async def GetInfo(  # noqa: N802
        self,
        request: registration_pb.InfoRequest,
        context: grpc.aio.ServicerContext[registration_pb.InfoRequest, registration_pb.PluginInfo],
    ) -> registration_pb.PluginInfo:
        """Which driver."""
        return registration_pb.PluginInfo(
            type=TYPE, name=DRIVER, endpoint=self.endpoint, supported_versions=list(VERSIONS)
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: registration_pb.RegistrationStatus,
        context: grpc.aio.ServicerContext[
            registration_pb.RegistrationStatus, registration_pb.RegistrationStatusResponse
        ],
    ) -> registration_pb.RegistrationStatusResponse:
        """Whether it worked."""
        self.problem = "" if request.plugin_registered else f"the kubelet does not take {DRIVER}: {request.error}"
        if self.problem:
            log.warning("%s", self.problem)
        else:
            log.info("registered with the kubelet", extra={"driver": DRIVER})
        return registration_pb.RegistrationStatusResponse()
