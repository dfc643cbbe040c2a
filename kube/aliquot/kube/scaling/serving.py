"""The parts of the process `aliquot-kube scaling`, put together."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from aliquot.client import AsyncPool
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.tls import ServerTls
from aliquot.kube.api.client import KubeClient
from aliquot.kube.core.scaling.callers import FrontProxy
from aliquot.kube.core.scaling.metrics_documents import VERSIONS
from aliquot.kube.holding.requests import Requests
from aliquot.kube.scaling import keda
from aliquot.kube.scaling.answers import Answers
from aliquot.kube.scaling.authenticating import Callers, read_front_proxy
from aliquot.kube.scaling.following import Follower, PodsByOwner
from aliquot.kube.scaling.metrics_api import MetricsApi
from aliquot.kube.scaling.registering import Registration
from aliquot.kube.settings import Settings
from aliquot.kube.webhook import Certificate

log = logging.getLogger(__name__)

_LOOK_S: Final = 10.0


class Scaling:
    """What autoscalers ask, over both ways. `start`, then `run`; `stop` in the end."""

    def __init__(
        self,
        client: KubeClient,
        pool: AsyncPool,
        cluster: str,
        settings: Settings,
        namespace: str,
        now_ms: Callable[[], int],
        *,
        look_s: float = _LOOK_S,
    ) -> None:
        self.metrics_port = 0
        self.keda_port = 0
        requests = Requests(client, cluster, settings.rules)
        self.follower = Follower(
            pool,
            PodsByOwner(client),
            requests,
            settings.scheduler,
            now_ms,
            every_s=settings.scaling_every / 1000,
            kept_s=settings.scaling_kept / 1000,
        )
        self._answers = Answers(self.follower, requests, settings.scaling_pool_readers)
        self._client = client
        self._settings = settings
        self._service = f"{namespace}/{settings.scaling_service}"
        self._look_s = look_s
        self._keda: Any = None
        self._proxy: FrontProxy | None = None
        self._runner: web.AppRunner | None = None
        self._certificate: Certificate | None = None
        self._registration: Registration | None = None

    async def start(self) -> None:
        """Begin to serve. Raises ConfigError, SecurityError, KubeError: also where an API is somebody else's."""
        settings = self._settings
        for group in settings.scaling_apis:
            if group not in VERSIONS:
                raise ConfigError(f"scaling_apis: {group!r} is none", hint=f"some of {', '.join(VERSIONS)}")
        if settings.scaling_apis:
            self._certificate = Certificate(settings.scaling_tls)
            self._registration = Registration(
                self._client, settings.scaling_apis, self._service, self._certificate, every_s=self._look_s
            )
            await self._registration.refuse_if_taken()
            self._proxy = await read_front_proxy(self._client)
            self.metrics_port = await self._listen(self._proxy, settings.scaling_metrics_port)
        if settings.scaling_keda_port >= 0:
            await self._start_keda()

    async def _start_keda(self) -> None:
        settings = self._settings
        address = f"{settings.scaling_host}:{settings.scaling_keda_port}"
        tls = None
        if (settings.scaling_tls / "tls.crt").exists():
            folder = settings.scaling_tls
            tls = ServerTls(folder / "tls.crt", folder / "tls.key", settings.scaling_client_ca)
        if keda.must_know_callers(address, tls):
            raise ConfigError(
                f"whoever asks at {address} could say that it is any namespace",
                hint="set scaling_client_ca to the authority of KEDA's certificate, or scaling_keda_port = -1",
            )
        scaler = keda.Scaler(self._answers, settings.scaling_clients)
        self._keda, self.keda_port = await keda.serve(scaler, address, tls)

    def work(self) -> list[Any]:
        """What has to run meanwhile."""
        found = [self.follower.run(), self.follower.pods.informer.run()]
        if self._registration is not None:
            found += [self._registration.run(), self._follow_proxy()]
        return found

    async def stop(self) -> None:
        """Serve no more."""
        if self._keda is not None:
            await self._keda.stop(grace=1.0)
        if self._runner is not None:
            await self._runner.cleanup()

    def ready(self) -> str:
        """Why it is not; empty: it is."""
        try:
            self.follower.picture()
        except AliquotError as error:
            return error.message
        return ""

    async def _listen(self, proxy: FrontProxy, port: int) -> int:
        """Serve to whoever shows a certificate of this front proxy, or none."""
        assert self._certificate is not None
        context = self._certificate.context
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=proxy.ca_pem)
        api = MetricsApi(self._answers, Callers(self._client, proxy), self._settings.scaling_apis, self.ready)
        self._runner = web.AppRunner(api.application(), access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._settings.scaling_host, port, ssl_context=context)
        await site.start()
        address: tuple[Any, ...] = self._runner.addresses[0]
        return int(address[1])

    async def _follow_proxy(self) -> None:
        """Ends with an error where the front proxy is known by something else now: this is started again then."""
        while True:
            await asyncio.sleep(self._look_s)
            try:
                found = await read_front_proxy(self._client)
            except AliquotError as error:
                log.warning("the front proxy's authority can't be looked at: %s", error.message)
                continue
            if found != self._proxy:
                raise ConfigError("the API server's front proxy is known by another certificate now; starting again")
