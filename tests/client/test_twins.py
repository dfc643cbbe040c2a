"""The twins stay twins: the same methods with the same arguments and defaults."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_type_hints

import pytest

from aliquot.client import AsyncHeldLease, AsyncPool, HeldLease, Pool, Request, RequestOptions

# `env` can't be awaited, so the asyncio twin has `environment()` alone.
BLOCKING_ONLY = {"env"}


@pytest.mark.parametrize(("blocking", "asyncio"), [(Pool, AsyncPool), (HeldLease, AsyncHeldLease)])
def test_same_methods_same_arguments(blocking: type, asyncio: type) -> None:
    ours, theirs = _public(blocking), _public(asyncio)
    assert set(ours) - BLOCKING_ONLY == set(theirs)
    for name in set(ours) & set(theirs):
        if callable(ours[name]):
            left, right = inspect.signature(ours[name]), inspect.signature(theirs[name])
            assert [(p.name, p.kind, p.default) for p in left.parameters.values()] == [
                (p.name, p.kind, p.default) for p in right.parameters.values()
            ], name


def test_keyword_arguments_are_the_fields_of_a_request() -> None:
    fields = {field.name for field in dataclasses.fields(Request)} - {"gpu"}
    assert set(get_type_hints(RequestOptions)) == fields
    hints = get_type_hints(Request)
    assert {name: hints[name] for name in fields} == get_type_hints(RequestOptions)


def _public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
