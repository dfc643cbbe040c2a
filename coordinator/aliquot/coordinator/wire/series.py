"""Names of series of demand, as messages have them."""

from __future__ import annotations

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.v1 import pool_pb2

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
