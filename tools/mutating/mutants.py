"""Every mutant of an area, and the sample of them that is tried: chosen by hash, so that everybody tries the same."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

from tools.mutating.areas import ROOT

Position = tuple[int, int]
_SIGNATURES = ("parameters", "typedargslist", "lambdef")
NOTHING = "nothing"
"""The operator that changes nothing: what the tests say then is what they always say."""


class RemoveCall(Operator):  # type: ignore[misc]
    """A call whose result nobody wants does not happen: the statement that was forgotten."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        """Calls that are statements."""
        if node.type in ("atom_expr", "power") and node.parent is not None and node.parent.type == "simple_stmt":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """`None` in its place."""
        return parso.python.tree.Keyword("None", node.start_pos, prefix=node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """Shown by nobody."""
        return ()


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file."""

    path: str
    operator: str
    occurrence: int
    line: int
    column: int

    @property
    def name(self) -> str:
        """Stays the same while the file does."""
        return f"{self.path}:{self.line}:{self.column} {self.operator}#{self.occurrence}"

    def code(self) -> str:
        """Of the whole file, with the change."""
        source = (ROOT / self.path).read_text("utf-8")
        if self.operator == NOTHING:
            return source
        found = mutate_code(source, _operators()[self.operator], self.occurrence)
        assert found is not None
        return str(found)


_BINARY = (
    *("Add_Sub", "Sub_Add", "Mul_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Mod_FloorDiv", "Div_Mul"),
    *("BitAnd_BitOr", "BitOr_BitAnd", "LShift_RShift", "RShift_LShift"),
)
_COMPARED = (
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "In_NotIn", "NotIn_In"),
    *("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "Gt_Lt", "LtE_GtE", "GtE_LtE"),
)
_PLAUSIBLE = (
    "AddNot",
    "NumberReplacer",
    "RemoveCall",
    "ReplaceAndWithOr",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ReplaceFalseWithTrue",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_USub_UAdd",
    "ZeroIterationForLoop",
    *(f"ReplaceBinaryOperator_{pair}" for pair in _BINARY),
    *(f"ReplaceComparisonOperator_{pair}" for pair in _COMPARED),
)
"""What somebody may have written. The others (`a / b` for `a << b`) fail at once, and would only raise the score."""


@cache
def _operators() -> dict[str, Operator]:
    known = {name.partition("/")[2]: name for name in operator_names()}
    found: dict[str, Operator] = {short: get_operator(known[short])() for short in _PLAUSIBLE if short in known}
    return {**found, "RemoveCall": RemoveCall()}


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Of one file: no annotations, layouts of classes, log messages or blocks for type checkers: nobody looks there."""
    source = path.read_text("utf-8")
    silent = list(_silent(ast.parse(source)))
    name = path.relative_to(ROOT).as_posix()
    seen: Counter[str] = Counter()
    for node in ast_nodes(get_ast(source)):
        is_star = node.type == "operator" and node.parent.type in _SIGNATURES  # before names to be given: no product
        for short, operator in _operators().items():
            for start, _ in operator.mutation_positions(node):
                if not is_star and not any(low <= start < high for low, high in silent):
                    yield Mutant(name, short, seen[short], *start)
                seen[short] += 1


def sample(paths: Iterable[Path], size: int, seed: str = "") -> tuple[list[Mutant], int]:
    """So many, at most one at each place, and how many there are in all. Each seed chooses others."""
    found = [mutant for path in paths for mutant in mutants_of(path)]
    by_hash = sorted(found, key=lambda mutant: hashlib.sha256(_hashed(mutant, seed)).digest())
    places: dict[tuple[str, int, int], Mutant] = {}
    for mutant in by_hash:
        places.setdefault((mutant.path, mutant.line, mutant.column), mutant)
    return list(places.values())[:size], len(found)


def _hashed(mutant: Mutant, seed: str) -> bytes:
    """Lines above that come and go change nothing about what is chosen."""
    return f"{mutant.path} {mutant.operator} {mutant.occurrence}{seed and ' '}{seed}".encode()


def _silent(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    for node in ast.walk(tree):
        quiet: ast.AST | None = None
        if isinstance(node, ast.AnnAssign | ast.arg):
            quiet = node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            quiet = node.returns
        elif _is_for_types(node) or _is_log(node) or _is_alias(node):
            quiet = node
        elif isinstance(node, ast.ClassDef):
            # How a class is laid out (`slots=True`): the type checker looks at that.
            yield from (_span(each) for each in (*node.decorator_list, *node.keywords))
        if quiet is not None:
            yield _span(quiet)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_log(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log.")


def _is_alias(node: ast.AST) -> bool:
    """`Name = Other | Another` or `Name = TypeVar(...)`: a name for a type."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp | ast.Subscript | ast.Call):
        return False
    if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) != "TypeVar":
        return False
    target = node.targets[0]
    return isinstance(target, ast.Name) and target.id[:1].isupper() and not target.id.isupper()


def _span(node: Any) -> tuple[Position, Position]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
