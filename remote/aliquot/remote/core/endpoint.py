"""Where a lease is served, and by which certificate: `remote://host:port?sha256=…`.

The process makes its key itself and nobody signs it. What vouches for it is the way by which the endpoint comes to the
client: from the process to its agent, over the agent's session to the coordinator, and from there over the client's.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from aliquot.common.errors import AliquotError

SCHEME = "remote"
_DIGEST_BYTES = 32


class EndpointError(AliquotError, ValueError):
    """A text that is no endpoint of ours."""

    reason = "INVALID_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, and the SHA-256 of the certificate (DER) that its server shows."""

    host: str
    port: int
    certificate_sha256: bytes

    @property
    def address(self) -> str:
        """As gRPC wants it."""
        return f"{_bracketed(self.host)}:{self.port}"

    def __str__(self) -> str:
        digest = base64.urlsafe_b64encode(self.certificate_sha256).decode().rstrip("=")
        return f"{SCHEME}://{self.address}?sha256={digest}"


def parse(text: str) -> Endpoint:
    """Read one. Raises `EndpointError`."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        fields = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        digest = base64.b64decode(fields.get("sha256", "") + "=", altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise EndpointError(f"{text!r} is no endpoint: {error}") from error
    if parts.scheme != SCHEME or not host or not port:
        raise EndpointError(
            f"{text!r} is not {SCHEME}://HOST:PORT?sha256=…",
            hint="its node serves leases by something else than aliquot",
        )
    if len(digest) != _DIGEST_BYTES:
        raise EndpointError(f"{text!r} does not say by which certificate it is known")
    return Endpoint(host, port, digest)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
