"""What services ask of forecasts, which are a part that can be left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.v1 import pool_pb2, types_pb2


class Foretelling(Protocol):
    """See `aliquot.coordinator.forecasting`."""

    def answer(self, only: str | None, may: Callable[[str], bool]) -> pool_pb2.ForecastResponse:
        """Demand as it was and as it is expected to be: of one series or of all, of tenants that the caller may see."""

    def tell_start(self, lease_id: str, message: types_pb2.Explanation) -> None:
        """Add when a request that waits is expected to start, where that is known."""


KINDS = ("pool", "model", "tenant", "class")


def read_series(request: pool_pb2.ForecastRequest) -> str | None:
    """The series that is asked for; None: all. Raises InvalidFieldError."""
    if not request.HasField("series"):
        return None
    kind, name = request.series.kind, request.series.name
    if not kind and not name:
        return ""
    if kind not in KINDS:
        raise InvalidFieldError("series.kind", f"{kind[:32]!r} is none of {', '.join(KINDS)}")
    return f"{kind}/{names.validate_text(name, 'series.name', limits.MAX_REASON_CHARS)}"
