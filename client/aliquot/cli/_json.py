"""Values as JSON, with the SDK's field names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from aliquot.cli._exits import exit_of
from aliquot.client import AliquotError, Lease, PlacementRefused, PoolError
from aliquot.client.admin import UNBOUNDED
from aliquot.common.tokens import without_tokens


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Something that `json` can write. A lease's secret is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        document = {
            field.name: str(found) if UNBOUNDED in field.metadata else plain(found)
            for field in dataclasses.fields(value)
            for found in (getattr(value, field.name),)
        }
        if isinstance(value, Lease):
            del document["secret"]
        return document
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def dumps(value: object, *, indent: int | None = None) -> str:
    """JSON text."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False)


def error_document(error: AliquotError) -> dict[str, Any]:
    """An error as JSON for stderr."""
    inner: dict[str, Any] = {
        "reason": error.stated_reason if isinstance(error, PoolError) else error.reason,
        "message": without_tokens(error.message),
        "hint": without_tokens(error.hint),
        "exit_code": int(exit_of(error)),
    }
    if isinstance(error, PoolError):
        if error.violations:
            inner["violations"] = plain(error.violations)
        if isinstance(error, PlacementRefused):
            inner["obstacle"] = error.obstacle
        if error.explanation is not None:
            inner["explanation"] = plain(error.explanation)
        if error.retry_after_s is not None:
            inner["retry_after_s"] = error.retry_after_s
    return {"error": inner}
