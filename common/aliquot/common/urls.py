"""Which URLs a secret may be sent to. Settings are checked by this, where nothing is asked over HTTP yet."""

from __future__ import annotations

from urllib.parse import urlsplit

from aliquot.common.errors import AliquotError
from aliquot.common.tls import is_local_address


class HttpError(AliquotError):
    """No answer that can be read."""

    reason = "HTTP_FAILED"


def check_url(url: str, *, public: bool = False) -> str:
    """The URL, if what is sent to it stays secret: HTTPS, or this machine. `public`: it need not. Raises HttpError."""
    try:
        parts = urlsplit(url)
        local = parts.scheme == "http" and is_local_address(f"{parts.hostname}:{parts.port or 80}")
    except ValueError:
        parts, local = urlsplit(""), False
    good = local or parts.scheme == "https" or (public and parts.scheme == "http")
    if not good or not parts.hostname or parts.username is not None:
        if public:
            raise HttpError(f"{url[:200]!r} is no address to ask at", hint="write it as http://host:9090")
        raise HttpError(f"{url[:200]!r} is no https:// address", hint="http:// is for this machine alone")
    return url
