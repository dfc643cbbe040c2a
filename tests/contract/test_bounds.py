"""How much is taken and kept at most is met by peers and users: part of the contract, like what is meant by default.

The public bounds of every module are saved beside this file, so that whoever changes one changes a line there, and
the pages and CHANGELOG where they name it:

    ALIQUOT_REWRITE=1 make one T=tests/contract/test_bounds.py
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROOTS = ("agent", "client", "common", "console", "coordinator", "kube", "remote")
SAVED = Path(__file__).with_name("bounds.txt")
BOUND = re.compile(r"(?!_)([A-Z0-9_]*_)?(MAX|MIN|KEPT|DEFAULT)(_[A-Z0-9_]+)?")
GIVEN = re.compile(r"^(?P<name>[A-Z_][A-Z0-9_]*)(?:: [^=\n]+)? = (?P<value>[^\[({\"'].*|\(.*)$", re.MULTILINE)
"""A name of a module, in capitals."""
WRITTEN_BY_TOOLS = ("_pb2", "/_sync/")


def test_bounds_are_those_that_were_promised() -> None:
    lines = sorted(line for root in ROOTS for path in (ROOT / root).rglob("*.py") for line in _of_module(path))
    assert len(lines) > 200
    if os.environ.get("ALIQUOT_REWRITE"):
        SAVED.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == SAVED.read_text(encoding="utf-8").splitlines()


def _of_module(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    if any(mark in f"/{name}" for mark in WRITTEN_BY_TOOLS):
        return
    known: dict[str, Any] = {}
    for found in GIVEN.finditer(path.read_text(encoding="utf-8")):
        number = _number(found["value"], known)
        if number is not None:
            known[found["name"]] = number
            if BOUND.fullmatch(found["name"]):
                yield f"{name.partition('aliquot/')[2].replace('/', '.')} {found['name']} = {number!r}"


def _number(text: str, known: dict[str, Any]) -> int | float | None:
    """What an expression of numbers, and of numbers above it, comes to; None: it is none."""
    try:
        value = ast.parse(text, mode="eval")
    except SyntaxError:
        return None  # it goes on in the next line
    for each in ast.walk(value):
        if isinstance(each, ast.Constant):
            if type(each.value) not in (int, float):
                return None
        elif isinstance(each, ast.Name):
            if each.id not in known:
                return None
        elif not isinstance(each, (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)):
            return None
    found: int | float = eval(compile(value, "", "eval"), {}, known)
    return found
