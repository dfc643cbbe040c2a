"""What all services share: errors become statuses in one place, and refusals are counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence, Sized
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from aliquot.common import limits, names
from aliquot.common.errors import AliquotError, InvalidFieldError
from aliquot.common.tasks import let_in
from aliquot.coordinator.core.values.errors import RoleMissing
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.coordinator.wire.parts import CALLS_PARTS_MAX, check_parts

Request = TypeVar("Request")
Response = TypeVar("Response")
Item = TypeVar("Item")
Context = grpc.aio.ServicerContext[Any, Any]
_OTHERS_BYTES_MAX = 4 * limits.KIB
"""Of what services are asked that are not ours: names of services and symbols."""
_TURN_ITEMS = 50
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Call(NamedTuple):
    """One call that is being answered."""

    method: str
    context: Context


_CALL: ContextVar[Call] = ContextVar("call")


def this_call() -> Call:
    """The call that the running task answers: gRPC has a task for each."""
    return _CALL.get()


class Service:
    """Base of the services."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def refuse(self, error: BaseException) -> None:
        """Count a refusal, and remember one that is about who called."""
        self.metrics.refused[rpc_errors.reason_of(error)] += 1
        if isinstance(error, RoleMissing):
            method, context = this_call()
            self.metrics.denials.note(error.principal, context.peer(), method, error.reason, error.message)


def unary(
    method: Callable[[Any, Request], Awaitable[Response]],
) -> Callable[[Any, Request, Context], Awaitable[Response]]:
    """A unary method whose errors become statuses."""

    @wraps(method)
    async def call(service: Service, request: Request, context: Context) -> Response:
        _CALL.set(Call(method.__name__, context))
        service.metrics.calls[method.__name__] += 1
        try:
            return await method(service, readable(request))
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status that says so
            service.refuse(error)
            await rpc_errors.abort(context, error)

    return call


def streamed(
    method: Callable[[Any, Request], AsyncGenerator[Response, None]],
) -> Callable[[Any, Request, Context], AsyncIterator[Response]]:
    """The same of a method that answers again and again. What it is sent it reads itself: see `readable`."""

    @wraps(method)
    async def call(service: Service, request: Request, context: Context) -> AsyncIterator[Response]:
        _CALL.set(Call(method.__name__, context))
        try:
            async with contextlib.aclosing(method(service, request)) as answers:
                async for answer in answers:
                    yield answer
        except AliquotError as error:
            service.refuse(error)
            await rpc_errors.abort(context, error)

    return call


class Undecodable(NamedTuple):
    """Stands for a message that is not, or can't be, decoded until somebody can answer that."""

    why: str
    size_bytes: int


class Refused(NamedTuple):
    """Stands for a message of a caller who may not send it any more."""

    why: AliquotError


def _anybody() -> None:
    """No question is asked of who sends."""


def tolerant(handler: Handler, admit: Callable[[], None] = _anybody) -> Handler:
    """The same method, called with Undecodable where gRPC itself would answer UNKNOWN and log a traceback, and where a
    message has more parts than any should; and with Refused where `admit`, which is called before each message is
    decoded, raises an AliquotError.

    Bytes that it answers with are sent as they are: what many get is encoded once.
    """
    decode, encode = handler.request_deserializer, handler.response_serializer
    if decode is None or encode is None:
        return handler

    descriptor = decode.__self__.DESCRIPTOR  # type: ignore[attr-defined]

    def read(data: bytes) -> object:
        try:
            admit()
        except AliquotError as error:
            return Refused(error)
        try:
            check_parts(data, descriptor, CALLS_PARTS_MAX)
            return decode(data)
        except (DecodeError, InvalidFieldError) as error:
            return Undecodable(str(error), len(data))

    def write(response: object) -> bytes:
        return response if isinstance(response, bytes) else encode(response)

    make, behaviour = kind_of(handler)
    return make(behaviour, read, write)


def guarded(handlers: Iterable[grpc.GenericRpcHandler]) -> grpc.GenericRpcHandler:
    """Services that are not ours, which are called with what can be decoded only. To be asked last: it answers calls of
    what there is not, too.
    """
    return _Guarded(tuple(handlers))


class Methods:
    """The methods of several services by name, each wrapped once."""

    def __init__(self, services: Sequence[grpc.GenericRpcHandler], wrap: Callable[[str, Handler], Handler]) -> None:
        self._services = services
        self._wrap = wrap
        self._known: dict[str, Handler] = {}
        """Those that were called."""

    def find(self, call: grpc.HandlerCallDetails) -> Handler | None:
        """The method that is called; None where there is none."""
        known = self._known.get(call.method)
        if known is not None:
            return known
        for service in self._services:
            handler: Handler | None = service.service(call)
            if handler is not None:
                self._known[call.method] = self._wrap(call.method, handler)
                return self._known[call.method]
        return None


class _Guarded(grpc.GenericRpcHandler):
    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._methods = Methods(handlers, lambda _, handler: _checked(tolerant(handler)))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """See `grpc.GenericRpcHandler`."""
        return self._methods.find(handler_call_details) or _NOTHING


async def _turn_away(_: object, context: Context) -> None:
    await rpc_errors.turn_away(context)
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


_NOTHING: Handler = grpc.stream_stream_rpc_method_handler(_turn_away)
"""Of a name that is no method's, in gRPC's own words."""


def kind_of(handler: Handler) -> tuple[Callable[..., Handler], Any]:
    """How a method of this kind is made, and what it calls."""
    if handler.request_streaming:
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler, handler.stream_stream
        return grpc.stream_unary_rpc_method_handler, handler.stream_unary
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler, handler.unary_stream
    return grpc.unary_unary_rpc_method_handler, handler.unary_unary


def _checked(handler: Handler) -> Handler:
    """The same method behind a look at what it is called with."""
    make, behaviour = kind_of(handler)

    async def check(request: Message, context: Context) -> None:
        try:
            check_size(readable(request), _OTHERS_BYTES_MAX)
        except InvalidFieldError as error:
            await rpc_errors.abort(context, error)

    async def called(request: Message, context: Context) -> object:
        await check(request, context)
        return await behaviour(request, context)

    async def known(requests: AsyncIterator[Message], context: Context) -> AsyncIterator[Message]:
        async for request in requests:
            await check(request, context)
            yield request

    async def conversed(requests: AsyncIterator[Message], context: Context) -> AsyncIterator[object]:
        async for response in behaviour(known(requests, context), context):
            yield response

    async def gathered(requests: AsyncIterator[Message], context: Context) -> object:
        return await behaviour(known(requests, context), context)

    checking: Any = called
    if handler.request_streaming:
        checking = conversed if handler.response_streaming else gathered
    return make(checking, handler.request_deserializer, handler.response_serializer)


def readable(request: Request) -> Request:
    """What was sent. Raises NotDecodedError where it can't be decoded, and why its caller may not send it."""
    if isinstance(request, Refused):
        raise request.why
    if isinstance(request, Undecodable):
        raise rpc_errors.NotDecodedError(request.why, request.size_bytes)
    return request


def check_size(request: Message, most: int) -> None:
    """Raises InvalidFieldError for a call that may last, and so would be kept, with more in it than it needs."""
    if request.ByteSize() > most:
        raise InvalidFieldError("message", f"{request.ByteSize()} bytes; at most {most} are allowed in this call")


def check_count(items: Sized, most: int, field: str) -> None:
    """Raises InvalidFieldError for a list that is too long."""
    if len(items) > most:
        said = f"{len(items)} at once; at most {most} are allowed"
        raise InvalidFieldError(field, said, hint="send several messages")


async def in_turns(items: Iterable[Item]) -> AsyncIterator[Item]:
    """The items, with a pause for everybody else after each 50: they take some milliseconds."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % _TURN_ITEMS:
            await let_in()


def page_size(asked: int, default: int, most: int) -> int:
    """How many items a page holds: 0 is the default, and more than allowed is as many as allowed."""
    return min(asked or default, most)


def page_after(token: str, letter: str) -> int:
    """Where the page before ended; 0: there was none. Raises InvalidFieldError for what is no token of such pages."""
    if not token:
        return 0
    if token[:1] != letter or not token[1:].isascii() or not token[1:].isdigit() or len(token) > _PAGE_TOKEN_CHARS_MAX:
        raise InvalidFieldError("page_token", "is none of ours", hint="use the token of the page before, unchanged")
    return int(token[1:])


def stated_reason(text: str) -> str:
    """Why somebody asks for something, in their words; may be empty. Raises InvalidFieldError."""
    return names.validate_text(text, "reason", limits.MAX_REASON_CHARS)


_PAGE_TOKEN_CHARS_MAX = 16
_WAIT_S = 1.0
"""A caller that sends nothing for so long is refused all the same."""


async def read_before_refusing(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Read the first message of a stream that will be refused: when a server ends a stream that its caller is still
    writing to, gRPC reports INTERNAL at the caller, and the reason, the leader's address and the time to come back are
    lost.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_WAIT_S):
            await context.read()
