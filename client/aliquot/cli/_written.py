"""A request as it is typed: how `_options` reads each kind of field, the other way round."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from aliquot.client import Request
from aliquot.client._values.base import Word
from aliquot.common.quantity import format_bytes
from aliquot.common.request_fields import REQUEST_FIELDS

_WRITTEN: Mapping[str, Callable[[Any], str]] = {"seconds": "{}s".format, "milli": "{}m".format, "bytes": format_bytes}


def written(request: Request) -> str:
    """After `aliquot alloc`, which keeps nothing alive and so takes no TTL."""
    words, unset = [request.gpu], Request("")
    for field in REQUEST_FIELDS:
        value = getattr(request, field.name)
        if value == getattr(unset, field.name) or field.name == "ttl_s":
            continue
        several = value if isinstance(value, tuple) else [value]
        if isinstance(value, Mapping):
            several = [f"{key}={text}" for key, text in value.items()]
        for each in several:
            text = spelled(each) if isinstance(each, Word) else _WRITTEN.get(field.kind, str)(each)
            words += [field.option] if each is True else [field.option, text]
    return shlex.join(words)


def spelled(word: Word) -> str:
    """A word of the contract in small letters: `require-island`."""
    return word.lower().replace("_", "-")
