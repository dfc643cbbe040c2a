"""Makes the calls of a pool: sends each until it is answered, refused or out of time, as `_retrying` has it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from aliquot.client._async.ports import AsyncTransport
from aliquot.client._async.seam import sleep
from aliquot.client._errors import PoolError
from aliquot.client._messages import read, sendable
from aliquot.client._methods import Answer, Method, Request
from aliquot.client._pages import Listing
from aliquot.client._retrying import Attempts, Context
from aliquot.client._trusting import TIMEOUT_S, Trusting
from aliquot.client._values.base import Page
from aliquot.client._watching import Cursor, Relist
from aliquot.common.failures import RpcFailure

log = logging.getLogger("aliquot.client")

T = TypeVar("T")


class AsyncCaller:
    """Makes the calls of one pool by one transport."""

    def __init__(self, transport: AsyncTransport, context: Context, trusting: Trusting | None = None) -> None:
        self._transport = transport
        self.context = context
        self._trusting = trusting

    async def call(
        self,
        method: Method[Request, Answer],
        request: Request,
        timeout_s: float,
        *,
        attempt_timeout_s: float | None = None,
    ) -> Answer:
        """Send a message. Raises the typed error of the last attempt."""
        answer = await self._attempted(method, request, Attempts(self.context, method, timeout_s, attempt_timeout_s))
        if self._trusting is not None and self._trusting.due(self.context.token.key):
            await self._look_whom_to_trust(self._trusting)
        return answer

    async def send(self, method: Method[Any, Answer], timeout_s: float, **fields: object) -> Answer:
        """`call` with a message of these fields. Raises `InvalidRequest` for values that they can't carry."""
        with sendable():
            request = method.request(**fields)
        return await self.call(method, request, timeout_s)

    async def page(
        self,
        listing: Listing[T],
        timeout_s: float,
        token: str = "",
        size: int = 0,
        **fields: Any,  # noqa: ANN401 - of the listing's call
    ) -> Page[T]:
        """One page, of the items that these fields of the call choose."""
        size = size or listing.size
        answer = await self.send(listing.method, timeout_s, page_token=token, page_size=size, **fields)
        items = tuple(map(listing.read, getattr(answer, listing.field)))
        return Page(items, answer.next_page_token, getattr(answer, "seq", 0))

    async def pages(self, listing: Listing[T], timeout_s: float, **fields: Any) -> Page[T]:  # noqa: ANN401 - see above
        """All pages as one, with the sequence number of the first: a watch from there misses nothing."""
        first = last = await self.page(listing, timeout_s, **fields)
        items = list(first.items)
        while last.next_token:
            last = await self.page(listing, timeout_s, last.next_token, **fields)
            items += last.items
        return Page(tuple(items), "", first.seq)

    async def stream(self, cursor: Cursor) -> AsyncGenerator[Any, None]:
        """The messages of a stream without end, which is opened again where it broke off; `Relist` where some were
        missed. Raises the typed error when trying again can't help.
        """
        while True:
            address = self.context.endpoints.current
            opened = self._transport.watch(cursor.method, cursor.request(), address)
            failure: RpcFailure | None = None
            try:
                async for message in opened:
                    yield message
            except RpcFailure as error:
                failure = error
            finally:
                opened.cancel()
            step = cursor.ended(failure, address)
            if isinstance(step, Relist):
                yield step
            else:
                await sleep(step.after_s)

    async def _attempted(self, method: Method[Request, Answer], request: Request, attempts: Attempts) -> Answer:
        while True:
            address, within_s = attempts.next()
            try:
                return await self._transport.unary(method, request, address, within_s)
            except RpcFailure as failure:
                pause_s = attempts.failed(failure)
            await sleep(pause_s)

    async def _look_whom_to_trust(self, trusting: Trusting) -> None:
        # Once an hour at most; what it needs takes long to import.
        from aliquot.client._access import ACCESS, TRUSTS_MAX  # noqa: PLC0415 - see above
        from aliquot.client.access import Authority  # noqa: PLC0415 - see above

        method, told = ACCESS["GetAuthority"], True
        try:
            while told:  # what is trusted from now on is said again
                request = method.request(trusts=trusting.trusts[:TRUSTS_MAX])
                answer = await self._attempted(method, request, Attempts(self.context, method, TIMEOUT_S))
                told = trusting.take(read(answer, Authority))
        except PoolError as error:
            log.info("whom to trust can't be asked now: %s", error)


class AsyncCalls:
    """The ground of `Pool.access`, `Pool.admin` and `Pool.supply`: calls whose arguments are fields of a message."""

    def __init__(self, caller: AsyncCaller, timeout_s: float) -> None:
        self._caller = caller
        self._timeout_s = timeout_s

    async def _send(self, method: Method[Any, Any], **fields: object) -> Any:  # noqa: ANN401 - the method's answer
        """Make a call with these fields in its message."""
        return await self._caller.send(method, self._timeout_s, **fields)

    async def _ask(self, kind: type[T], method: Method[Any, Any], **fields: object) -> T:
        """The same, and read the answer as a value."""
        return read(await self._send(method, **fields), kind)
