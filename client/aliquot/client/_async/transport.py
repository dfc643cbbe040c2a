"""The transport on gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Generic, Protocol

import grpc.aio

from aliquot.client._async.ports import AsyncExchange, AsyncServerStream, Received_co
from aliquot.client._async.seam import GrpcExchange, Lock
from aliquot.client._channels import OPTIONS
from aliquot.client._grpc_status import to_failure, unanswered
from aliquot.client._methods import Answer, Method, Request
from aliquot.client._token import NO_TOKEN, Token
from aliquot.common.failures import RpcFailure


class AsyncGrpcTransport:
    """One channel per address, made at its first use; for one event loop.

    The token goes along as plain metadata: call credentials would cost every call 100 µs.
    """

    def __init__(self, credentials: grpc.ChannelCredentials | None = None, token: Token = NO_TOKEN) -> None:
        self._credentials = credentials
        self._token = token
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._lock = Lock()
        self._closed = False

    async def unary(self, method: Method[Request, Answer], request: Request, address: str, timeout_s: float) -> Answer:
        """Send one message and wait for the answer. Raises `RpcFailure`."""
        call = self._channel(address).unary_unary(
            method.path, method.request.SerializeToString, method.answer.FromString
        )
        try:
            return await call(request, timeout=timeout_s, metadata=self._token.metadata(address))
        except grpc.aio.AioRpcError as error:
            raise unanswered(_failure(error, address), closed=self._closed) from None

    def watch(self, method: Method[Request, Answer], request: Request, address: str) -> AsyncServerStream[Answer]:
        """Send one message, receive many."""
        call = self._channel(address).unary_stream(
            method.path, method.request.SerializeToString, method.answer.FromString
        )
        return _Stream(call(request, metadata=self._token.metadata(address)), address)

    def exchange(self, method: Method[Request, Answer], address: str) -> AsyncExchange[Request, Answer]:
        """Send many, receive many."""
        call = self._channel(address).stream_stream(
            method.path, method.request.SerializeToString, method.answer.FromString
        )
        return GrpcExchange(call, address, self._token.metadata(address))

    async def close(self) -> None:
        """Drop all connections; calls under way end with CANCELLED."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
            self._channels.clear()
        for channel in channels:
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = (
                    grpc.aio.insecure_channel(address, options=OPTIONS)
                    if self._credentials is None
                    else grpc.aio.secure_channel(address, self._credentials, options=OPTIONS)
                )
                self._channels[address] = channel
            return channel


class _Call(Protocol[Received_co]):
    def __aiter__(self) -> AsyncIterator[Received_co]: ...

    def cancel(self) -> object: ...


class _Stream(Generic[Answer]):
    def __init__(self, call: _Call[Answer], address: str) -> None:
        self._call = call
        self._address = address

    async def __aiter__(self) -> AsyncIterator[Answer]:
        try:
            async for answer in self._call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise _failure(error, self._address) from None

    def cancel(self) -> None:
        self._call.cancel()


def _failure(error: grpc.aio.AioRpcError, address: str) -> RpcFailure:
    return to_failure(error, error.trailing_metadata(), address)
