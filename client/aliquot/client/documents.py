"""Values as JSON, with the SDK's field names: what `--json` prints and the console serves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from aliquot.client._errors import PlacementRefused, PoolError
from aliquot.client._values.base import UNBOUNDED
from aliquot.client._values.leases import Lease
from aliquot.common.errors import AliquotError
from aliquot.common.tokens import without_tokens

_AS_IT_IS = frozenset({str, int, float, bool, type(None)})


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Something that `json` can write. A lease's secret is left out."""
    kind: Any = type(value)
    if kind in _AS_IT_IS:
        return value
    shown = _shown(kind)
    if shown is not None:
        return {
            name: str(found) if in_text and found is not None else plain(found)
            for name, in_text in shown
            for found in (getattr(value, name),)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


@cache
def _shown(kind: type) -> list[tuple[str, bool]] | None:
    """The fields of a dataclass, and which of them are written as text; None: it is no dataclass."""
    if not dataclasses.is_dataclass(kind):
        return None
    fields = [(field.name, UNBOUNDED in field.metadata) for field in dataclasses.fields(kind)]
    return [each for each in fields if each[0] != "secret"] if issubclass(kind, Lease) else fields


def of_error(error: AliquotError) -> dict[str, Any]:
    """What went wrong and what to do next, without anybody's token."""
    document: dict[str, Any] = {
        "reason": error.stated_reason if isinstance(error, PoolError) else error.reason,
        "message": without_tokens(error.message),
        "hint": without_tokens(error.hint),
    }
    if isinstance(error, PoolError):
        if error.violations:
            document["violations"] = plain(error.violations)
        if isinstance(error, PlacementRefused):
            document["obstacle"] = error.obstacle
        if error.explanation is not None:
            document["explanation"] = plain(error.explanation)
        if error.retry_after_s is not None:
            document["retry_after_s"] = error.retry_after_s
    return document
