"""The SDK for threads is what the one for asyncio becomes; where both are written by hand they offer the same."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import get_type_hints

import pytest

import aliquot.client
from aliquot.client import Request, RequestOptions
from tools import unasync

CLIENT = Path(aliquot.client.__file__).parent
# A property can't be awaited, so tasks have `environment()` alone.
THREADS_ONLY = {"HeldLeaseBase", "HeldLeaseBase.env", "HeldLeaseBase.environment"}


def test_the_twin_for_threads_is_up_to_date() -> None:
    outdated = [path.name for path, text in unasync.generate().items() if path.read_text(encoding="utf-8") != text]
    assert outdated == [], "run `make sync`"
    assert {path.name for path in (CLIENT / "_sync").glob("*.py")} == {
        path.name for path in (CLIENT / "_async").glob("*.py")
    }


def test_nothing_of_asyncio_is_left_in_it() -> None:
    words = ("async ", "await ", "asyncio", "Async", "_async", ".aio")
    for path in (CLIENT / "_sync").glob("*.py"):
        if path.name not in unasync.BY_HAND:
            text = path.read_text(encoding="utf-8").split("\n", 1)[1]
            assert [word for word in words if word in text] == [], path.name


@pytest.mark.parametrize("name", ["seam.py"])
def test_what_is_written_by_hand_has_the_same_names_and_arguments(name: str) -> None:
    tasks, threads = (_offered(CLIENT / folder / name) for folder in ("_async", "_sync"))
    assert {key: value for key, value in threads.items() if key not in THREADS_ONLY} == tasks


def test_keyword_arguments_are_the_fields_of_a_request() -> None:
    fields = {field.name for field in dataclasses.fields(Request)} - {"gpu"}
    assert set(get_type_hints(RequestOptions)) == fields
    hints = get_type_hints(Request)
    assert {name: hints[name] for name in fields} == get_type_hints(RequestOptions)


def _offered(path: Path) -> dict[str, list[str]]:
    """Public functions and methods of a module, each with its parameters."""
    found: dict[str, list[str]] = {}
    for item in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = item.body if isinstance(item, ast.ClassDef) else [item]
        prefix = f"{item.name}." if isinstance(item, ast.ClassDef) else ""
        for function in inner:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and (
                not function.name.startswith("_") or function.name == "__init__"
            ):
                found[prefix + function.name] = [argument.arg for argument in function.args.args]
    return found
