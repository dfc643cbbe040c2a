"""The common part of both twins' pools: the coordinators' addresses, the tenant, and the held leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from aliquot.client import _errors as errors
from aliquot.client._asking import Asked, Places, as_request, fresh_key
from aliquot.client._held_base import Callbacks, HeldBase, log
from aliquot.client._keeping import News
from aliquot.client._retrying import Context, Endpoints, RetryPolicy
from aliquot.client._settings import Connecting
from aliquot.client._trusting import Trusting
from aliquot.client._values.leases import Lease
from aliquot.client._values.requests import Request, RequestOptions
from aliquot.client.local import LocalAgent, find_agents

DEFAULT_TIMEOUT_S = 30.0
GONE_WITHIN_S = 60.0
OnLost = Callable[[errors.LeaseLost], None]
OnNotice = Callable[[int], None]
OnResize = Callable[[Lease], None]
H = TypeVar("H", bound=HeldBase[Any])


class KeepsLeases(Protocol):
    """Either twin's keeper."""

    def add(self, lease_id: str, ttl_s: float) -> None: ...

    def drop(self, lease_id: str) -> None: ...


class PoolBase(Generic[H]):
    """The part of a pool that does no I/O."""

    _keeper: KeepsLeases

    def __init__(
        self,
        found: Connecting,
        retry: RetryPolicy | None,
        timeout_s: float,
        agent_sockets: Sequence[Path] | None,
    ) -> None:
        self._found, settings = found, found.settings
        endpoints = Endpoints(settings.coordinator)
        self._trusting = Trusting(found.tls, settings.coordinator, found.kept_in)
        self._context = Context(endpoints, retry or RetryPolicy(), time.monotonic, token=found.token)
        self._held: dict[str, H] = {}
        self._agent_sockets = agent_sockets
        self.tenant = settings.tenant
        """The tenant of requests that name none."""
        self.timeout_s = timeout_s
        """How long a call may take, retries included, unless the call says otherwise."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The coordinators this pool knows."""
        return self._context.endpoints.addresses

    def connection_string(self, token: str, *, addresses: Sequence[str] = (), node: str = "", ca_pem: str = "") -> str:
        """What `aliquot login` (or, with a node, `aliquot-agent join`) takes on another machine: these addresses (none:
        this pool's own), the authority that it is to trust (none: that this pool trusts), and the token.
        """
        return self._found.connection_string(token, addresses, node, ca_pem)

    def trusts_some_of(self, pem: str) -> bool:
        """Whether this pool's connections trust one of these authorities (PEM)."""
        return self._found.trusts_some_of(pem)

    @property
    def token_text(self) -> str:
        """The token that it shows; empty: none. As secret as a password."""
        return self._context.token.text

    @property
    def token_origin(self) -> str:
        """Where its token is from, for people: a file, a variable, the credentials file."""
        return self._context.token.origin

    @property
    def agents(self) -> tuple[LocalAgent, ...]:
        """Agents of this machine."""
        if self._agent_sockets is None:
            return find_agents()
        return tuple(map(LocalAgent, self._agent_sockets))

    def _ask(self, gpu: str | Request, options: RequestOptions) -> Request:
        return as_request(gpu, options, self.tenant)

    def _asked(self, gpu: str | Request, options: RequestOptions, key: str, places: Places | None = None) -> Asked:
        return Asked(self._ask(gpu, options), key or fresh_key(), places)

    def _several(
        self, requests: Sequence[str | Request], keys: Sequence[str], nodes: Sequence[str] | None = None
    ) -> list[Asked]:
        places = [None] * len(requests) if nodes is None else nodes
        each = zip(requests, keys or [""] * len(requests), places, strict=True)
        return [self._asked(request, {}, key, place) for request, key, place in each]

    # Held leases, and what the keep-alive stream says of them.

    def _remember(self, held: H, callbacks: Callbacks) -> H:
        held.on_lost, held.on_notice, held.on_resize = callbacks
        self._held[held.lease_id] = held
        return held

    def _forget(self, lease_id: str) -> None:
        self._keeper.drop(lease_id)
        self._held.pop(lease_id, None)

    def _on_news(self, news: News) -> None:
        held = self._held.get(news.lease_id)
        if held is None:
            # Granted, but not yet handed to the caller; `release` will tell how it ended.
            log.info("lease %s: %s", news.lease_id, news)
            return
        held.take_news(news)
