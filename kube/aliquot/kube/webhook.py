"""Admission by a webhook: mutating policies can't read what pods ask for in the request grammar.

It answers what `core.admission` and `core.words` say and keeps nothing. Its certificate is read again when its files
change, and the authority that it is of is written into the webhook's configuration: nobody has to copy it there.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from aliquot.common.errors import AliquotError, ConfigError, SecurityError
from aliquot.common.tls import ServerContext, ServerTls
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeError
from aliquot.kube.api.resources import MUTATING_WEBHOOKS
from aliquot.kube.core import names, words
from aliquot.kube.core.admission import AdmittedPod, Patch, patch_of
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.serving import Answer

log = logging.getLogger(__name__)

CONFIGURATION: Final = "aliquot-pods"
"""The MutatingWebhookConfiguration."""
PATH: Final = "/mutate"
TRANSLATE: Final = "/translate"
"""Asked before, about pods in other systems' words whose label says so."""
_LOOK_S: Final = 10.0


class _Request(msgspec.Struct, gc=False):
    uid: str
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, rename="camel", gc=False):
    request: _Request
    api_version: str = ""


_REVIEW = msgspec.json.Decoder(_Review)
_POD = msgspec.json.Decoder(AdmittedPod)
_THEIRS = msgspec.json.Decoder(RawPod)


def questions(scheduler: str = names.SCHEDULER, replica_percent: int = 0) -> Mapping[str, Answer]:
    """What it answers, by path. `replica_percent` is what a time-sliced replica is of a card; 0: not said."""

    def counted(raw: msgspec.Raw) -> Patch:
        return patch_of(_POD.decode(raw), scheduler)

    def translated(raw: msgspec.Raw) -> Patch:
        pod = _THEIRS.decode(raw)
        found = words.translated(pod, replica_percent)
        return [] if found is None else words.patch_of(pod, found, scheduler)

    return {PATH: _answering(counted), TRANSLATE: _answering(translated)}


def _answering(decide: Callable[[msgspec.Raw], Patch]) -> Answer:
    async def answer(body: bytes) -> bytes:
        asked = _REVIEW.decode(body).request
        response: dict[str, Any] = {"uid": asked.uid, "allowed": True}
        try:
            patch = decide(asked.object)
        except AliquotError as error:
            # Said at once, to whoever creates it: it could be neither counted nor placed.
            status = {"code": 422, "reason": "Invalid", "message": f"aliquot: {error.explain()}"}
            response |= {"allowed": False, "status": status}
            patch = []
        if patch:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
        whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        return msgspec.json.encode(whole)

    return answer


class Certificate(ServerContext):
    """A server's certificate and key in files that somebody renews, and the authority's beside them."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError for files that can't be used."""
        self._authority = folder / "ca.crt"
        try:
            super().__init__(ServerTls(folder / "tls.crt", folder / "tls.key"), by_itself=False)
        except SecurityError as error:
            raise ConfigError(
                f"{folder}: no tls.crt and tls.key to serve with: {error}",
                hint="name a Secret in the chart whose certificate is for the Service that is served; "
                "the webhook can have one made: ALIQUOT_KUBE_WEBHOOK_SERVICE",
            ) from error

    def authority(self) -> bytes:
        """In PEM. Raises `OSError`."""
        return self._authority.read_bytes()


async def keep(
    certificate: Certificate,
    client: KubeClient,
    *,
    renew: Callable[[], Awaitable[None]] | None = None,
    every_s: float = _LOOK_S,
) -> None:
    """Follow the certificate's files, and have the webhook's configuration trust their authority; until cancelled.

    `renew` replaces the files before they end. A certificate is shown only when its authority is trusted.
    """
    said = ""
    while True:
        problem = ""
        try:
            if renew is not None:
                await renew()
            await trust(client, await asyncio.to_thread(certificate.authority))
            await asyncio.to_thread(certificate.refresh)
        except (OSError, KubeError) as error:
            problem = str(error)
            if problem != said:
                log.warning("the webhook's certificate: %s", problem)
        said = problem
        await asyncio.sleep(every_s)


async def trust(client: KubeClient, authority: bytes) -> bool:
    """Have the API server trust it for our webhook; whether that was news. Raises KubeError."""
    path = MUTATING_WEBHOOKS.path(name=CONFIGURATION)
    found = await client.find(path, dict[str, Any])
    if found is None:
        return False
    wanted = base64.b64encode(authority).decode()
    if all(each["clientConfig"].get("caBundle") == wanted for each in found["webhooks"]):
        return False
    for each in found["webhooks"]:
        each["clientConfig"]["caBundle"] = wanted
    await client.put(path, found)
    return True
