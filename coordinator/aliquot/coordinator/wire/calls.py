"""What all services share: errors become statuses in one place, and refusals are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.wire import errors as rpc_errors

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]


class Service:
    """Base of the services."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics


def unary(
    method: Callable[[Any, Request, Context], Awaitable[Response]],
) -> Callable[[Any, Request, Context], Awaitable[Response]]:
    """A unary method whose errors become statuses."""

    @wraps(method)
    async def call(service: Service, request: Request, context: Context) -> Response:
        try:
            return await method(service, readable(request), context)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status that says so
            service.metrics.refused[rpc_errors.reason_of(error)] += 1
            await rpc_errors.abort(context, error)

    return call


class Undecodable(NamedTuple):
    """Stands for a message that can't be decoded until somebody can answer that."""

    why: str


def tolerant(handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """The same method, called with Undecodable where gRPC itself would answer UNKNOWN and log a traceback.

    Bytes that it answers with are sent as they are: what many get is encoded once.
    """
    decode, encode = handler.request_deserializer, handler.response_serializer
    if decode is None or encode is None:
        return handler

    def read(data: bytes) -> object:
        try:
            return decode(data)
        except DecodeError as error:
            return Undecodable(str(error))

    def write(response: object) -> bytes:
        return response if isinstance(response, bytes) else encode(response)

    if handler.request_streaming and handler.stream_stream is not None:
        return grpc.stream_stream_rpc_method_handler(handler.stream_stream, read, write)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(handler.unary_stream, read, write)
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(handler.unary_unary, read, write)
    return handler


def guarded(handlers: Iterable[grpc.GenericRpcHandler]) -> grpc.GenericRpcHandler:
    """Services that are not ours, which are called with what can be decoded only."""
    return _Guarded(tuple(handlers))


class _Guarded(grpc.GenericRpcHandler):
    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See `grpc.GenericRpcHandler`."""
        for service in self._handlers:
            handler: grpc.RpcMethodHandler[Any, Any] | None = service.service(handler_call_details)
            if handler is not None:
                return _checked(tolerant(handler))
        return None


def _checked(handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """The same method behind a look at what it is called with."""
    read, write = handler.request_deserializer, handler.response_serializer

    async def check(request: object, context: Context) -> None:
        try:
            readable(request)
        except InvalidFieldError as error:
            await rpc_errors.abort(context, error)

    if handler.unary_unary is not None:
        answer: Any = handler.unary_unary

        async def unary_unary(request: object, context: Context) -> object:
            await check(request, context)
            return await answer(request, context)

        return grpc.unary_unary_rpc_method_handler(unary_unary, read, write)
    if handler.unary_stream is not None:
        follow: Any = handler.unary_stream

        async def unary_stream(request: object, context: Context) -> object:
            await check(request, context)
            return await follow(request, context)

        return grpc.unary_stream_rpc_method_handler(unary_stream, read, write)
    converse: Any = handler.stream_stream

    async def stream_stream(requests: AsyncIterator[object], context: Context) -> AsyncIterator[object]:
        async def known() -> AsyncIterator[object]:
            async for request in requests:
                await check(request, context)
                yield request

        async for response in converse(known(), context):
            yield response

    return grpc.stream_stream_rpc_method_handler(stream_stream, read, write)


def readable(request: Request) -> Request:
    """What was sent. Raises InvalidFieldError where it can't be decoded."""
    if isinstance(request, Undecodable):
        raise InvalidFieldError(
            "message",
            f"can't be decoded: {request.why}",
            hint="look for a proxy that changes messages, or a caller that speaks another protocol",
        )
    return request


def page_size(asked: int, default: int, most: int) -> int:
    """How many items a page holds: 0 is the default, and more than allowed is as many as allowed."""
    return min(asked or default, most)
