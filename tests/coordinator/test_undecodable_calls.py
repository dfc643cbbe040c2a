"""Methods of every kind hear of messages that can't be decoded, and are wrapped once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from aliquot.coordinator.wire.calls import Undecodable, guarded, tolerant
from tests.identity import insecure_channel

REQUEST, ANSWER = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse


class Called:
    """A service with a method of each kind."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    async def unary_unary(self, request: object, context: object) -> Any:
        self.seen.append(request)
        return ANSWER()

    async def unary_stream(self, request: object, context: object) -> AsyncIterator[Any]:
        self.seen.append(request)
        yield ANSWER()

    async def stream_unary(self, requests: AsyncIterator[object], context: object) -> Any:
        self.seen += [request async for request in requests]
        return ANSWER()

    async def stream_stream(self, requests: AsyncIterator[object], context: object) -> AsyncIterator[Any]:
        async for request in requests:
            self.seen.append(request)
            yield ANSWER()

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            kind: getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(self, kind), REQUEST.FromString, ANSWER.SerializeToString
            )
            for kind in KINDS
        }


KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


@contextlib.asynccontextmanager
async def serving(handler: grpc.GenericRpcHandler) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def call(channel: Any, kind: str, raw: bytes) -> bytes:
    method = getattr(channel, kind)(f"/t.T/{kind}")
    made = method(iter([raw])) if kind.startswith("stream") else method(raw)
    if kind.endswith("unary"):
        return bytes(await made)
    return b"".join([answer async for answer in made])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_method_of_any_kind_is_called_with_what_can_not_be_decoded(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    called = Called()
    handlers = {name: tolerant(handler) for name, handler in called.handlers().items()}
    async with serving(grpc.method_handlers_generic_handler("t.T", handlers)) as channel:
        assert await call(channel, kind, b"\xff\xff") == b""
        (seen,) = called.seen
        assert isinstance(seen, Undecodable)
        assert await call(channel, kind, b"") == b""
    assert not caplog.records


@pytest.mark.parametrize("kind", ["unary_unary", "stream_unary", "stream_stream"])
async def test_other_services_are_called_with_what_can_be_decoded_only(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    called = Called()
    service = guarded([grpc.method_handlers_generic_handler("t.T", called.handlers())])
    async with serving(service) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call(channel, kind, b"\xff\xff")
        assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert not called.seen
        assert await call(channel, kind, b"") == b""
        assert called.seen == [REQUEST()]
    assert not caplog.records


def test_a_method_is_wrapped_once() -> None:
    service = guarded([grpc.method_handlers_generic_handler("t.T", Called().handlers())])
    details: Any = type("Details", (), {"method": "/t.T/unary_unary", "invocation_metadata": ()})
    assert service.service(details) is service.service(details)
