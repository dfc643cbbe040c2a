"""The base of all facts, whose kinds are in each subject's books; and tables of functions by what each is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_origin

import msgspec

Function = TypeVar("Function", bound=Callable[..., Any])


class Fact(msgspec.Struct, frozen=True, gc=False, array_like=True, tag_field="k"):
    """Base of all facts. `at_ms` is the coordinator's clock, which never goes backwards."""

    at_ms: int


def by_kind(*functions: Function) -> dict[type[Any], Function]:
    """These functions by the type of their second parameter, as their own signatures have it: the fact, the command or
    the query.
    """
    found = {_kind_of(each): each for each in functions}
    assert len(found) == len(functions), "two of them are about the same, and one would never be called"
    return found


def _kind_of(function: Callable[..., Any]) -> type[Any]:
    _, said, *_ = function.__annotations__.values()
    # Only this one: what else a signature names may be there for type checkers alone.
    kind: type[Any] = eval(said, function.__globals__)  # noqa: S307 - our own source
    return get_origin(kind) or kind
