"""What all services share: errors become statuses in one place, and refusals are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

import grpc.aio

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
            return await method(service, request, context)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status that says so
            service.metrics.refused[rpc_errors.reason_of(error)] += 1
            await rpc_errors.abort(context, error)

    return call


def page_size(asked: int, default: int, most: int) -> int:
    """How many items a page holds: 0 is the default, and more than allowed is as many as allowed."""
    return min(asked or default, most)
