"""A captured step: the words that one run of it put into the stream, made fit to be run again.

Handles come in three kinds. Those that lived before the step are its state: weights, moments, inputs. Those that it
makes and lets go are its own; they are given numbers that nobody else has. Those that it makes and leaves alive are
its results; each run makes them anew under the same handle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from aliquot.remote.core.messages import Arg, FloatArg, IntArg, ListArg, Template, TensorArg
from aliquot.remote.core.words import FREE, StreamError


class NotRepeatable(Exception):
    """Running these words again would not do what running the step again would. `site` is that of the operator."""

    def __init__(self, message: str, site: int) -> None:
        super().__init__(message)
        self.site = site


@dataclass(frozen=True, slots=True)
class Shape:
    """Where a template's handles stand in its record, counted from the template's number."""

    operator: str
    width: int
    tensors: tuple[int, ...]
    results: tuple[int, ...]


def shape_of(template: Template) -> Shape:
    """The shape of a template's records."""
    tensors: list[int] = []
    at = 2

    def add(arg: Arg) -> None:
        nonlocal at
        match arg:
            case TensorArg():
                tensors.append(at)
                at += 5 if arg.shifted else 1
            case FloatArg() | IntArg():
                at += 4
            case ListArg():
                for item in arg.items:
                    add(item)
            case _:
                pass

    for arg in (*template.args, *template.kwargs.values()):
        add(arg)
    made = sum(result is not None for result in template.results)
    return Shape(template.operator, at + made, tuple(tensors), tuple(range(at, at + made)))


@dataclass(frozen=True, slots=True)
class Step:
    """What a run of a step said."""

    words: list[int]
    """All but what lets go of state from before."""
    meaning: list[tuple[int, ...]]
    """Each operator, with handles by the order in which they were made: the same for two runs that do the same."""
    sites: list[int]
    made: frozenset[int]
    """Handles that were made, let go or not."""


def read(words: Sequence[int], shapes: Mapping[int, Shape]) -> Step:
    """Understand the words of one run.

    Raises:
        NotRepeatable: it uses what it then lets go, and did not make: the next run would not find it.
        StreamError: these are no words of a run.
    """
    kept: list[int] = []
    meaning: list[tuple[int, ...]] = []
    sites: list[int] = []
    names: dict[int, int] = {}
    made: set[int] = set()
    used_before: dict[int, int] = {}
    at = 0
    while at < len(words):
        number = words[at]
        if number == FREE:
            handle = words[at + 1]
            if handle in names:
                del names[handle]
                kept += (FREE, handle)
            elif handle in used_before:
                raise NotRepeatable(
                    "it uses a tensor of the step before, which is then replaced: change tensors in place instead",
                    used_before[handle],
                )
            at += 2
            continue
        shape = shapes.get(number)
        if shape is None:
            raise StreamError(f"template {number} is not known")
        record = list(words[at : at + shape.width])
        kept += record
        sites.append(record[1])
        for place in shape.tensors:
            handle = record[place]
            if handle in names:
                record[place] = -names[handle]
            else:
                used_before.setdefault(handle, record[1])
        for place in shape.results:
            names[record[place]] = len(made) + len(meaning) + 1
            made.add(record[place])
            record[place] = 0
        record[1] = 0
        meaning.append(tuple(record))
        at += shape.width
    return Step(kept, meaning, sites, frozenset(made))


def compare(first: Step, second: Step, shapes: Mapping[int, Shape]) -> None:
    """Check that two runs did the same.

    Raises:
        NotRepeatable: they did not, and where.
    """
    for one, other, site in zip(first.meaning, second.meaning, second.sites, strict=False):
        if one == other:
            continue
        name = shapes[other[0]].operator
        if one[0] != other[0]:
            raise NotRepeatable(f"{name} came where {shapes[one[0]].operator} had been, or with other sizes", site)
        tensors = shapes[other[0]].tensors
        if any(one[place] != other[place] for place in tensors):
            raise NotRepeatable(f"{name} was given another tensor than before", site)
        raise NotRepeatable(
            f"{name} was given another number than before: a number that changes from step to step must be a tensor "
            "on the device (for optimizers: capturable=True)",
            site,
        )
    if len(first.meaning) != len(second.meaning):
        raise NotRepeatable(f"it had {len(first.meaning)} operators, then {len(second.meaning)}", 0)


def rename(
    step: Step, shapes: Mapping[int, Shape], results: Collection[int], new_handle: Callable[[], int]
) -> tuple[list[int], list[int]]:
    """The words with handles of their own for all that is made and let go; and those handles."""
    own: dict[int, int] = {}
    current: dict[int, int] = {}
    words = list(step.words)
    last = {words_at: handle for handle, words_at in _last_made(step, shapes).items() if handle in results}
    at = 0
    while at < len(words):
        if words[at] == FREE:
            words[at + 1] = current.get(words[at + 1], words[at + 1])
            at += 2
            continue
        shape = shapes[words[at]]
        for place in shape.tensors:
            words[at + place] = current.get(words[at + place], words[at + place])
        for place in shape.results:
            handle = words[at + place]
            if at + place in last:
                current.pop(handle, None)
            else:
                if handle not in own:
                    own[handle] = new_handle()
                current[handle] = words[at + place] = own[handle]
        at += shape.width
    return words, list(own.values())


def _last_made(step: Step, shapes: Mapping[int, Shape]) -> dict[int, int]:
    """Where each handle is made for the last time."""
    places: dict[int, int] = {}
    at = 0
    while at < len(step.words):
        if step.words[at] == FREE:
            at += 2
            continue
        shape = shapes[step.words[at]]
        for place in shape.results:
            places[step.words[at + place]] = at + place
        at += shape.width
    return places
