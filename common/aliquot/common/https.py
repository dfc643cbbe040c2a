"""HTTP by the standard library, never redirected: a secret that was meant for one server goes to no other. JSON over
HTTPS in one exchange, bounded in size and time.

Blocking; whoever has an event loop calls it in a thread.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from aliquot.common.tls import is_local_address
from aliquot.common.urls import HttpError, check_url

_CHUNK_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said."""

    status: int
    document: Mapping[str, Any]


def open_directly(
    request: urllib.request.Request, *, timeout_s: float, context: ssl.SSLContext | None = None
) -> http.client.HTTPResponse:
    """Send it where it says, and nowhere else. Raises OSError; its HTTPError where the answer is a redirect, too."""
    if request.type not in {"http", "https"}:
        raise OSError(f"{request.type} is no scheme to ask by: http and https are")
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), urllib.request.HTTPSHandler(context=context)]
    if is_local_address(f"{request.host}" if ":" in request.host else f"{request.host}:80"):
        handlers.append(urllib.request.ProxyHandler({}))  # this machine, where no proxy leads
    opener = urllib.request.build_opener(*handlers)
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=timeout_s)
    except http.client.HTTPException as error:
        raise OSError(f"{request.host} does not answer as HTTP has it: {error!r}") from error
    return response


def exchange(
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
    token: str = "",
    timeout_s: float = 5.0,
    bytes_max: int = 256 * 1024,
    context: ssl.SSLContext | None = None,
    public: bool = False,
) -> Answer:
    """GET, or POST of a form or a JSON document; statuses of refusal are answers too. Raises HttpError.

    `public`: nothing of it is a secret, so that `http://` will do for other machines, too.
    """
    headers = {"Accept": "application/json"}
    body: bytes | None = None
    if form is not None:
        body = urlencode(form).encode()
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    elif document is not None:
        body = json.dumps(document).encode()
        headers["Content-Type"] = "application/json"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(check_url(url, public=public), body, headers)  # noqa: S310 - just checked
    deadline = time.monotonic() + timeout_s
    where = f"{request.type}://{request.host}"
    try:
        with open_directly(request, timeout_s=timeout_s, context=context) as response:
            return Answer(response.status, _read(response, deadline, bytes_max, where))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _read(error, deadline, bytes_max, where, refusal=True))
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", None) or error
        raise HttpError(f"{where} does not answer: {cause}") from error


def _read(response: Any, deadline: float, bytes_max: int, where: str, *, refusal: bool = False) -> Mapping[str, Any]:  # noqa: ANN401 - HTTPResponse or HTTPError
    read = bytearray()
    while chunk := response.read1(_CHUNK_BYTES) if hasattr(response, "read1") else response.read(bytes_max + 1):
        read += chunk
        if len(read) > bytes_max:
            raise HttpError(f"{where} answers with more than {bytes_max} bytes")
        if time.monotonic() > deadline:
            raise HttpError(f"{where} is too slow")
    try:
        found = json.loads(read)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    if refusal:
        return {}
    raise HttpError(f"{where} does not answer with a JSON object")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another server than the one that is trusted is not asked."""

    def redirect_request(self, *_: object) -> None:
        return None
