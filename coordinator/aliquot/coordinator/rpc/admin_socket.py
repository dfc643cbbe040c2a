"""The coordinator's own socket: whoever gets into its folder is administrator. The way in that can't be lost.

gRPC does not say which user is at the other end of a Unix socket, so the folder's mode decides: it belongs to the
service and nobody else may enter. It serves `Bootstrap` and nothing more.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from aliquot.common.errors import SecurityError
from aliquot.common.own_files import make_private
from aliquot.coordinator.rpc.caller import OURSELVES, set_caller
from aliquot.coordinator.rpc.gate import Gate
from aliquot.coordinator.rpc.server import SERVER_OPTIONS
from aliquot.coordinator.wire.calls import Methods, tolerant

log = logging.getLogger(__name__)

SOCKET_FILE = "admin.sock"
_BOOTSTRAP = "/aliquot.v1.AccessService/Bootstrap"


class AdminSocket(grpc.GenericRpcHandler):
    """`start` it and `stop` it on the event loop of the coordinator."""

    def __init__(self, gate: Gate, services: Callable[[], Sequence[grpc.GenericRpcHandler]]) -> None:
        """`services`: those of the coordinator while it leads."""
        self._gate = gate
        self._services = services
        self._server = grpc.aio.server(handlers=[self], options=SERVER_OPTIONS)

    async def start(self, folder: Path) -> None:
        """Listen in this folder. Raises SecurityError where others may enter it."""
        self._bind(folder)
        await self._server.start()

    def _bind(self, folder: Path) -> None:
        make_private(folder)
        require_private(folder)
        path = folder / SOCKET_FILE
        path.unlink(missing_ok=True)
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError:
            log.error("can't listen on %s, so `aliquot access bootstrap` won't work: is the path too long?", path)  # noqa: TRY400

    async def stop(self) -> None:
        """Listen no more."""
        await self._server.stop(None)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """See `grpc.GenericRpcHandler`."""
        if handler_call_details.method != _BOOTSTRAP:
            return None
        if not self._gate.is_open:
            return self._gate.service(handler_call_details)  # says who leads
        set_caller(OURSELVES)
        return Methods(self._services(), lambda _, handler: tolerant(handler)).find(handler_call_details)


def require_private(folder: Path) -> None:
    """Raises SecurityError unless only its owner, who is us, may enter it."""
    info = folder.stat()
    if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
        mending = f"chown {os.geteuid()} {folder} && chmod 700 {folder}"
        if info.st_mode & stat.S_ISVTX:
            mending = f"name a folder in it: {folder} is meant for everybody"
        raise SecurityError(f"{folder} can be entered by others, and whoever gets in is administrator", hint=mending)
