"""The SDK for threads is what the one for asyncio becomes; where both are written by hand they offer the same."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import aliquot.client
import hatch_build
from aliquot.client import Request, RequestOptions
from aliquot.client._async import leasing as of_tasks
from aliquot.client._sync import leasing as of_threads

CLIENT = Path(aliquot.client.__file__).parent
# A property can't be awaited, so tasks have `environment()` alone.
THREADS_ONLY = {"HeldLeaseBase.env", "HeldLeaseBase.environment"}


def test_the_twin_is_written_where_the_checkout_has_none(tmp_path: Path) -> None:
    shutil.copytree(CLIENT / "_async", tmp_path / hatch_build.SDK / "_async", ignore=shutil.ignore_patterns("__*__"))
    twin = tmp_path / hatch_build.SDK / "_sync"
    twin.mkdir()
    (twin / "left_over.py").touch()
    written = hatch_build.generate_twin(tmp_path)
    assert {path.name for path in twin.glob("*.py")} == {path.name for path in written}
    assert {path.name for path in written} | hatch_build.TWINS_BY_HAND - {"__init__.py"} == {
        path.name for path in (CLIENT / "_async").glob("[!_]*.py")
    }
    outdated = [path.name for path in written if path.read_bytes() != (CLIENT / "_sync" / path.name).read_bytes()]
    assert outdated == [], "run `make sync`"
    assert hatch_build.generate_twin(tmp_path) == [], "what has not changed is not written again"


def test_nothing_of_asyncio_is_left_in_it() -> None:
    words = ("async ", "await ", "asyncio", "Async", "_async", ".aio")
    for path in (CLIENT / "_sync").glob("*.py"):
        if path.name not in hatch_build.TWINS_BY_HAND:
            text = path.read_text(encoding="utf-8").split("\n", 1)[1]
            assert [word for word in words if word in text] == [], path.name


def test_what_is_written_by_hand_has_the_same_names_and_arguments() -> None:
    tasks, threads = (_offered(CLIENT / folder / "seam.py") for folder in ("_async", "_sync"))
    assert {key: value for key, value in threads.items() if key not in THREADS_ONLY} == tasks
    # A lease that is asked for is a class of its own for tasks alone; both are begun alike.
    tasks, threads = (_offered(CLIENT / folder / "leasing.py") for folder in ("_async", "_sync"))
    assert {name.partition(".")[0] for name in tasks} == set(threads) == {"Leasing", "start"}
    assert _parameters(of_tasks.start) == _parameters(of_threads.start) == ["obtain"]


def test_keyword_arguments_are_the_fields_of_a_request() -> None:
    fields = {field.name for field in dataclasses.fields(Request)} - {"gpu"}
    assert set(get_type_hints(RequestOptions)) == fields
    hints = get_type_hints(Request)
    assert {name: hints[name] for name in fields} == get_type_hints(RequestOptions)


def _parameters(function: Callable[..., object]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _offered(path: Path) -> dict[str, list[str]]:
    """Public names of a module, those of functions and methods with their parameters."""
    found: dict[str, list[str]] = {}
    for item in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(item, ast.Assign):
            found.update((target.id, []) for target in item.targets if isinstance(target, ast.Name))
        if isinstance(item, ast.ClassDef):
            found[item.name] = []
        inner = item.body if isinstance(item, ast.ClassDef) else [item]
        prefix = f"{item.name}." if isinstance(item, ast.ClassDef) else ""
        for function in inner:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and (
                not function.name.startswith("_") or function.name == "__init__"
            ):
                found[prefix + function.name] = [argument.arg for argument in function.args.args]
    return found
