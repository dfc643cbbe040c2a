"""Keeps the device plugin registered with a kubelet that may come and go.

A kubelet that starts removes the sockets of all plugins and makes its own anew: a new inode at its path means that the
plugin has to listen and register again.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import grpc

from aliquot.kube.node.channels import unix_channel
from aliquot.kube.node.core.resources import PERCENT_RESOURCE
from aliquot.kube.node.device_plugin import OPTIONS, DevicePlugin
from aliquot.kube.node.protos import deviceplugin_pb2 as pb
from aliquot.kube.node.protos import deviceplugin_pb2_grpc as rpc

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"
VERSION = "v1beta1"
TIMEOUT_S = 5.0
LOOK_S = 0.5

Seen = tuple[int, int] | None


class Registration:
    """`folder`: the kubelet's, of device plugins."""

    def __init__(self, plugin: DevicePlugin, folder: Path) -> None:
        self.plugin = plugin
        self._folder = folder
        self.problem = "not registered with the kubelet yet"
        """Why it is not registered; empty when it is."""

    async def run(self) -> None:
        """Register, and again whenever that is needed, for ever."""
        registered: tuple[Seen, Seen] | None = None
        while True:
            now = (_identity(self._folder / KUBELET_SOCKET), _identity(self._folder / self.plugin.socket_name))
            if now[0] is None:
                self._say(f"there is no kubelet at {self._folder / KUBELET_SOCKET}")
                registered = None
            elif now != registered or now[1] is None:
                registered = await self._register()
            await asyncio.sleep(LOOK_S)

    async def _register(self) -> tuple[Seen, Seen] | None:
        kubelet, own = self._folder / KUBELET_SOCKET, self._folder / self.plugin.socket_name
        before = _identity(kubelet)
        try:
            await self.plugin.serve(own)
            async with unix_channel(kubelet) as channel:
                request = pb.RegisterRequest(
                    version=VERSION,
                    endpoint=self.plugin.socket_name,
                    resource_name=PERCENT_RESOURCE,
                    options=OPTIONS,
                )
                await rpc.RegistrationStub(channel).Register(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self._say(f"the kubelet does not take {PERCENT_RESOURCE}: {error.details()}")
            return None
        except (OSError, RuntimeError) as error:
            self._say(f"{own}: {error}")
            return None
        self._say("")
        log.info("registered with the kubelet", extra={"resource": PERCENT_RESOURCE})
        return before, _identity(own)

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("%s; trying again", problem)
        self.problem = problem


def _identity(path: Path) -> Seen:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
