"""Looks after our APIServices: whose they are, and that the API server trusts our certificate for them."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Sequence
from typing import Final

import msgspec

from aliquot.common.errors import ConfigError
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeError, KubeNotFound
from aliquot.kube.api.resources import API_SERVICES
from aliquot.kube.core.scaling.owning import Registered, names_of, registered, taken, way_out
from aliquot.kube.webhook import Certificate

log = logging.getLogger(__name__)

_EVERY_S: Final = 10.0


async def look(client: KubeClient, groups: Sequence[str]) -> list[Registered]:
    """The APIServices of these groups. Raises KubeError."""
    return [registered(name, await _get(client, name)) for group in groups for name in names_of(group)]


async def _get(client: KubeClient, name: str) -> dict[str, object] | None:
    try:
        found: dict[str, object] = msgspec.json.decode(await client.get(API_SERVICES.path(name=name)))
    except KubeNotFound:
        return None
    return found


class Registration:
    """See the module's docstring. `service` is ours, as `NAMESPACE/NAME`."""

    def __init__(
        self,
        client: KubeClient,
        groups: Sequence[str],
        service: str,
        certificate: Certificate,
        *,
        every_s: float = _EVERY_S,
    ) -> None:
        self.problem = ""
        """What is in the way now; empty: nothing."""
        self._client = client
        self._groups = tuple(groups)
        self._service = service
        self._certificate = certificate
        self._every_s = every_s

    async def refuse_if_taken(self) -> None:
        """Raises ConfigError, with both names, where somebody else answers already; KubeError."""
        found = await look(self._client, self._groups)
        text = taken(found, self._service)
        if text:
            raise ConfigError(text, hint=way_out(found, self._service))

    async def run(self) -> None:
        """Keep the certificate, and what the API server trusts, up to date; until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self._certificate.refresh)
                problem = await self._once()
            except (OSError, ssl.SSLError, KubeError) as error:
                problem = str(error)
            if problem != self.problem and problem:
                log.error("the metrics APIs: %s", problem)
            self.problem = problem
            await asyncio.sleep(self._every_s)

    async def _once(self) -> str:
        found = await look(self._client, self._groups)
        authority = base64.b64encode(await asyncio.to_thread(self._certificate.authority)).decode()
        for one in found:
            if one.is_of(self._service):
                await self._trust(one.name, authority)
        missing = [one.name for one in found if not one.there]
        lacking = f"APIService {', '.join(missing)}: there is none, so nobody asks" if missing else ""
        return taken(found, self._service) or lacking

    async def _trust(self, name: str, authority: str) -> None:
        document = msgspec.json.decode(await self._client.get(API_SERVICES.path(name=name)))
        if document["spec"].get("caBundle") != authority:
            document["spec"]["caBundle"] = authority
            document["spec"].pop("insecureSkipTLSVerify", None)
            await self._client.put(API_SERVICES.path(name=name), document)
