"""Values as JSON: the SDK's own field names, units and all, so that a script and a program read the same words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from aliquot.cli._exits import exit_of
from aliquot.client import AliquotError, Lease, PoolError


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Something that `json` can write. A lease's secret is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        document = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
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


def message_document(message: Message) -> dict[str, Any]:
    """A message of the contract under its own field names, numbers as numbers and unset ones as 0, as everywhere."""
    document: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _numbers(document, message.DESCRIPTOR.fields)
    return document


def _numbers(document: dict[str, Any], fields: Iterable[Any]) -> None:
    """64-bit integers are strings in the JSON of protocol buffers; the SDK's own documents have numbers.

    Sums that may outgrow 64 bits are strings in the contract itself, and stay strings.
    """
    for field in fields:
        if field.name not in document:
            continue
        found = document[field.name]
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            value = inner.fields_by_name["value"]
            document[field.name] = {key: _number(item, value) for key, item in found.items()}
        elif isinstance(found, list):
            document[field.name] = [_number(item, field) for item in found]
        else:
            document[field.name] = _number(found, field)


def _number(value: Any, field: Any) -> Any:  # noqa: ANN401 - JSON, and a descriptor of either implementation
    if field.message_type is not None:
        _numbers(value, field.message_type.fields)
    elif field.cpp_type in {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}:
        return int(value)
    return value


def dumps(value: object, *, indent: int | None = None) -> str:
    """JSON text."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False)


def error_document(error: AliquotError) -> dict[str, Any]:
    """An error as scripts get it on stderr."""
    inner: dict[str, Any] = {
        "reason": error.stated_reason if isinstance(error, PoolError) else error.reason,
        "message": error.message,
        "hint": error.hint,
        "exit_code": int(exit_of(error)),
    }
    if isinstance(error, PoolError):
        if error.violations:
            inner["violations"] = plain(error.violations)
        if error.explanation is not None:
            inner["explanation"] = plain(error.explanation)
        if error.retry_after_s is not None:
            inner["retry_after_s"] = error.retry_after_s
    return {"error": inner}
