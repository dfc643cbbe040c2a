"""The webhook's certificate, made by the webhook itself, renewed before it ends, shared by its replicas in a Secret.

Only API servers look at it, and by the `caBundle` that the webhook writes. So it needs no authority that anybody else
trusts: each certificate has one of its own, whose key is thrown away. The bundle keeps the authority before, so that a
replica that has not seen the new certificate yet goes on being believed.
"""

from __future__ import annotations

import base64
import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from aliquot.common import certificates
from aliquot.common.own_files import write_whole
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeConflict
from aliquot.kube.api.resources import SECRETS
from aliquot.kube.core.shapes import RawMeta

log = logging.getLogger(__name__)

LIFE: Final = dt.timedelta(days=90)
_RENEW_AT: Final = LIFE / 3
"""When so much is left."""
_SLACK: Final = dt.timedelta(minutes=10)
"""Clocks differ by less."""
_BEFORE_MAX: Final = 2
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
_TYPE: Final = "kubernetes.io/tls"


class _Secret(msgspec.Struct):
    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    data: dict[str, str] = {}


def service_names(service: str, namespace: str) -> list[str]:
    """What an API server calls a Service by."""
    return [f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"]


def issue(names: Sequence[str], now: dt.datetime, before: bytes = b"") -> dict[str, bytes]:
    """A certificate for these names, its key, and whom to trust: its authority, and those of `before` that go on."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = certificates.named("aliquot webhook authority")
    valid = certificates.Validity(now - _SLACK, now + LIFE)
    authority = certificates.authority(name, authority_key.public_key(), authority_key, valid)
    certificate = certificates.leaf(
        certificates.named("aliquot webhook"),
        key.public_key(),
        name,
        authority_key,
        valid,
        alternatives=[x509.DNSName(each) for each in names],
        purpose=ExtendedKeyUsageOID.SERVER_AUTH,
    )
    still = [one for one in _certificates(before) if one.not_valid_after_utc > now][:_BEFORE_MAX]
    return {
        CERTIFICATE: _pem(certificate),
        KEY: certificates.key_pem(key),
        AUTHORITY: b"".join(map(_pem, [authority, *still])),
    }


def due(files: Mapping[str, bytes], names: Sequence[str], now: dt.datetime) -> str:
    """Why a new certificate is needed; empty: none is."""
    found = _certificates(files.get(CERTIFICATE, b""))
    if not found or not files.get(KEY) or not files.get(AUTHORITY):
        return "there is none"
    if found[0].not_valid_after_utc - now < _RENEW_AT:
        return f"it ends at {found[0].not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    try:
        said = found[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "it has no names"
    missing = set(names) - set(said.get_values_for_type(x509.DNSName))
    return f"it is not for {min(missing)}" if missing else ""


class SharedCertificate:
    """A Secret that replicas keep up to date together, and its copy in a folder of this process' own."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        service: str,
        folder: Path,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self.name = f"{service}-tls"
        self._client = client
        self._namespace = namespace
        self._names = service_names(service, namespace)
        self._folder = folder
        self._now = now
        self._written: Mapping[str, bytes] = {}

    async def refresh(self) -> None:
        """Have the folder hold a certificate that is good. Raises KubeError, and `OSError`."""
        files, version = await self._read()
        why = due(files, self._names, self._now())
        if why:
            made = issue(self._names, self._now(), files.get(AUTHORITY, b""))
            try:
                await self._write(made, version)
                log.info("a new certificate for the webhook: %s", why)
                files = made
            except KubeConflict:
                files, _ = await self._read()  # another replica was faster
        if files != self._written:
            for name, content in files.items():
                write_whole(self._folder / name, content, durable=False)
            self._written = files

    async def _read(self) -> tuple[dict[str, bytes], str]:
        found = await self._client.find(SECRETS.path(self._namespace, self.name), _Secret)
        if found is None:
            return {}, ""
        known = (CERTIFICATE, KEY, AUTHORITY)
        files = {name: base64.b64decode(found.data[name]) for name in known if name in found.data}
        return files, found.metadata.resource_version

    async def _write(self, files: Mapping[str, bytes], version: str) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "namespace": self._namespace},
            "type": _TYPE,
            "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
        }
        if not version:
            await self._client.post(SECRETS.path(self._namespace), document)
            return
        document["metadata"] = {"name": self.name, "namespace": self._namespace, "resourceVersion": version}
        await self._client.put(SECRETS.path(self._namespace, self.name), document)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem) if pem else []
    except ValueError:
        return []
