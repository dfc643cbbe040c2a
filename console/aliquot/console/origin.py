"""How browsers reach this console: by which names, over HTTP or HTTPS, and what follows for cookies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from starlette.responses import Response

PAGES_HEADER: Final = b"x-aliquot-console"
"""Our page sends it with whatever changes something. Pages of others can't, without being asked about it first."""
BY_COOKIE: Final = "aliquot.by_cookie"
"""In the scope of a request whose caller is known by its cookie."""
SESSION: Final = "aliquot"
"""The cookie that holds a session's token."""


@dataclass(frozen=True, slots=True)
class Origin:
    """`names` are those by which it may be called; `url` is that of a proxy in front of it, if there is one."""

    names: Collection[str]
    url: str = ""
    tls: bool = False

    def knows(self, authority: str) -> bool:
        """Whether a request for this `Host` is meant for it."""
        return without_port(authority).lower() in self.names

    def base(self, authority: str) -> str:
        """The origin that a browser sees which asks for this `Host`."""
        return f"{self._scheme(authority)}://{authority.lower()}"

    def is_own(self, origin: str, authority: str) -> bool:
        """Whether a request's `Origin` is a page of this console's."""
        return origin == self.base(authority) or (bool(self.url) and origin == self.url)

    def secure(self, authority: str) -> bool:
        """Whether the browser speaks HTTPS."""
        return self._scheme(authority) == "https"

    def cookie(self, name: str, authority: str) -> str:
        """A cookie's name. Over HTTP, which is loopback alone, browsers mix up what the ports of a machine set."""
        if self.secure(authority):
            return f"__Host-{name}"
        return f"{name}-{authority.rpartition(':')[2] if ':' in authority.rpartition(']')[2] else '80'}"

    def set_cookie(
        self,
        response: Response,
        name: str,
        value: str,
        authority: str,
        *,
        max_age_s: int,
        same_site: Literal["lax", "strict"] = "strict",
    ) -> None:
        """Have the browser keep it, out of reach of pages; without a value: forget it."""
        response.set_cookie(
            self.cookie(name, authority),
            value,
            max_age=max_age_s if value else 0,
            httponly=True,
            samesite=same_site,
            secure=self.secure(authority),
        )

    def _scheme(self, authority: str) -> str:
        if self.tls:
            return "https"
        parts = urlsplit(self.url)
        behind_proxy = bool(self.url) and without_port(authority).lower() == (parts.hostname or "")
        return parts.scheme if behind_proxy else "http"


def without_port(authority: str) -> str:
    """The name alone, or the address in its brackets."""
    if authority.startswith("["):
        return authority[: authority.find("]") + 1]
    return authority.partition(":")[0]
