"""Tables of functions by what each is about, which its own signature says: nothing is listed twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_origin

Function = TypeVar("Function", bound=Callable[..., Any])


def by_kind(*functions: Function) -> dict[type[Any], Function]:
    """These functions by the type of their second parameter: the fact, the command or the query."""
    return {_kind_of(each): each for each in functions}


def _kind_of(function: Callable[..., Any]) -> type[Any]:
    _, said, *_ = function.__annotations__.values()
    # Only this one: what else a signature names may be there for type checkers alone.
    kind: type[Any] = eval(said, function.__globals__)  # noqa: S307 - our own source
    return get_origin(kind) or kind
