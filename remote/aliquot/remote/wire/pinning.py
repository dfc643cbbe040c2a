"""A client's TLS to a server that is known by its certificate's digest.

gRPC for Python takes authorities, not digests. So the certificate is fetched first, compared with the digest, and then
is the only authority that gRPC trusts: whoever answers in between without its key fails the handshake.
"""

from __future__ import annotations

import hmac
import socket
import ssl
from hashlib import sha256

import grpc

from aliquot.remote.core.endpoint import Endpoint
from aliquot.remote.errors import SessionUnreachable


def pinned_credentials(endpoint: Endpoint, timeout_s: float) -> grpc.ChannelCredentials:
    """Credentials for the server with that certificate only. Raises `SessionUnreachable`."""
    return grpc.ssl_channel_credentials(
        root_certificates=ssl.DER_cert_to_PEM_cert(_fetch(endpoint, timeout_s)).encode()
    )


def _fetch(endpoint: Endpoint, timeout_s: float) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, and what came is compared below
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s) as plain,
            context.wrap_socket(plain) as secured,
        ):
            certificate = secured.getpeercert(binary_form=True) or b""
    except OSError as error:
        raise SessionUnreachable(
            f"nobody answers at {endpoint.address} ({error.strerror or error})",
            hint="the node must be reachable from here, where its agent's `hosting.advertise` and `hosting.ports` say",
        ) from error
    if not hmac.compare_digest(sha256(certificate).digest(), endpoint.certificate_sha256):
        raise SessionUnreachable(
            f"the certificate at {endpoint.address} is not of the process that serves the lease",
            hint="the process may have been started again: ask for the lease's endpoint again",
            reason="SESSION_CERTIFICATE",
        )
    return certificate
