"""What the agent starts for a lease that is used from elsewhere (docs/hosting.md): a server for each member."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from aliquot.common.errors import ConfigError
from aliquot.common.limits import DEFAULT_GRACE_S
from aliquot.common.tls import is_local_address
from aliquot.remote.core.endpoint import Endpoint
from aliquot.remote.server import certificate, engines
from aliquot.remote.server.doorkeeper import Lease
from aliquot.remote.server.listening import RemoteServer
from aliquot.remote.wire.client import software

_BEFORE_THE_KILL_S = 1.0
"""So long before its grace ends the process says goodbye."""
_PORT_END = 1 << 16


class Service:
    """See `aliquot.agent.hosting.base.Service`. `environment`: the process's own."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._server: RemoteServer | None = None

    async def start(self) -> str:
        """Listen. Returns the endpoint. Raises `ConfigError` and `OSError`."""
        environment = self._environment
        lease = Lease.of(environment)
        if not engines.installed():
            raise ConfigError("no engine is installed that could do what clients say")
        host = environment.get("ALIQUOT_SERVING_HOST") or "127.0.0.1"
        own = certificate.make()
        server = RemoteServer(lease, engines.make, software())
        port = _listen(server, host, _ports(environment.get("ALIQUOT_SERVING_PORTS", "")), own)
        self._server = server
        return str(Endpoint(host, port, own.sha256))

    async def stop(self) -> None:
        """Tell clients how long there is, serve on for that long or until they have gone, then say goodbye."""
        server = self._server
        if server is None:
            return
        grace_s = int(self._environment.get("ALIQUOT_GRACE_MS") or DEFAULT_GRACE_S * 1000) / 1000
        server.announce(grace_s, "the lease, or the process that serves it, is being ended")
        await asyncio.to_thread(server.wait_empty, grace_s - _BEFORE_THE_KILL_S)
        await asyncio.to_thread(server.stop, "STOPPED", "the process that served the lease was ended", 0.8)

    def figures(self) -> Mapping[str, int]:
        """See `aliquot.agent.hosting.base.Measured`."""
        if self._server is None:
            return {}
        found = self._server.figures()
        renamed = {
            "ops_total": found.get("ops", found.get("frames_up", 0)),
            "waits_total": found.get("waits", 0),
            "up_bytes_total": found.get("bytes_up", 0),
            "down_bytes_total": found.get("bytes_down", 0),
            "resumed_total": found.get("resumed", 0),
            "refused_total": found.get("refused", 0),
        }
        now = {key: found[key] for key in ("sessions", "run_ahead_frames", "memory_bytes") if key in found}
        return renamed | now


class TorchService(Service):
    """Where clients have PyTorch's operators done."""

    @staticmethod
    def prepare() -> None:
        """See `aliquot.agent.hosting.base.Prepared`."""
        from aliquot.remote.server import pytorch  # noqa: PLC0415 - PyTorch, which other services can do without

        pytorch.prepare()


def _listen(server: RemoteServer, host: str, ports: range, own: certificate.OwnCertificate) -> int:
    """On the loopback where that is what clients are told, else on every address. Returns the port."""
    hosts = (host,) if is_local_address(f"[{host}]" if ":" in host else host) else ("::", "0.0.0.0")  # noqa: S104
    problem: OSError | None = None
    for each in hosts:
        for port in ports:
            try:
                return server.start(each, port, own)
            except OSError as error:
                problem = error
    raise OSError(f"no port of hosting.ports ({ports.start}-{ports.stop - 1}) is free: {problem}")


def _ports(text: str) -> range:
    """`FIRST-LAST`; empty: any. Raises `ConfigError`."""
    if not text:
        return range(1)
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < _PORT_END):
        raise ConfigError(f"hosting.ports {text!r} is not FIRST-LAST", hint="write 40000-40099")
    return range(int(first), int(last) + 1)
