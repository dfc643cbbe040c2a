"""Each broken variant still breaks what runs: no simulation, so that a name that moved is noticed in a second.

A variant whose place is gone, or that nothing uses any more, would break nothing; one that no longer takes the
arguments of what it replaces would count as caught, by its own TypeError.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

from tests.simulation.checking import CATALOGUE
from tests.simulation.mutant import MUTANTS, Mutant

_RUN = ("aliquot.", "tests.simulation.sim.")
"""What a simulation runs."""


class Place(NamedTuple):
    """What a variant puts where."""

    owner: Any
    name: str
    new: Any

    @property
    def now(self) -> Any:
        """What lies there, not bound to anything."""
        return inspect.getattr_static(self.owner, self.name)

    def __str__(self) -> str:
        return f"{self.owner.__name__}.{self.name}"


def places_of(mutant: Mutant) -> list[Place]:
    places: list[Place] = []
    mutant.apply(lambda owner, name, new: places.append(Place(owner, name, new)))
    return places


@cache
def names_in(module: str) -> frozenset[str]:
    """Globals and attributes that a module's code mentions."""
    path = getattr(sys.modules[module], "__file__", None)
    waiting = [compile(Path(path).read_bytes(), path, "exec")] if path else []
    found: set[str] = set()
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return frozenset(found)


def users(place: Place) -> Iterator[str]:
    """Modules that meet a replacement. `from module import name` elsewhere keeps what was there before."""
    in_class = not isinstance(place.owner, ModuleType)
    for name, module in list(sys.modules.items()):
        if name.startswith(_RUN) and place.name in names_in(name):
            named = module is place.owner or any(value is place.owner for value in vars(module).values())
            if in_class or named:
                yield name


def functions(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """What was called, and what is called in its place; of tables, by key."""
    if isinstance(old, dict) and isinstance(new, dict) and any(callable(value) for value in old.values()):
        assert set(new) == set(old), f"unknown: {set(new) - set(old)}"
        for key, value in new.items():
            if value is not old[key]:
                yield from functions(old[key], value)
    elif isinstance(old, property):
        assert isinstance(new, property)
        yield old.fget, new.fget
    elif callable(old):
        assert callable(new)
        yield old, new


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_what_a_variant_replaces_is_there_and_used_and_takes_the_same_arguments(mutant: Mutant) -> None:
    places = places_of(mutant)
    assert places
    for place in places:
        assert list(users(place)), f"nothing uses {place} any more"
        for old, new in functions(place.now, place.new):
            assert old is not new
            if not isinstance(old, type):
                inspect.signature(new).bind(*inspect.signature(old, follow_wrapped=False).parameters)
            if isinstance(new, FunctionType) and "original" in (closure := inspect.getclosurevars(new).nonlocals):
                assert closure["original"] is old, f"{place} is not what this variant calls in its place"
    before = [place.now for place in places]
    with mutant.applied():
        assert all(place.now is not old for place, old in zip(places, before, strict=True))
    assert [place.now for place in places] == before


def test_the_catalogue_is_all_there_is() -> None:
    files = {Path(module.__file__ or "").name for module in CATALOGUE}
    assert files == {path.name for path in Path(__file__).parent.glob("mutations*.py")}
