"""Functions that came once as explicit lists of calls, and are then operators like others.

Nothing of them is source text: each call names an operator of the allow-list and refers to earlier values by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aliquot.remote.core import messages
from aliquot.remote.operators import find, is_random
from aliquot.remote.server.executor import Executable, TemplateError, constant
from aliquot.remote.server.randomness import Generator
from aliquot.remote.server.store import Store

PREFIX = "graph::"

_Getter = Callable[[list[Any]], Any]


class _Step:
    """One call of a graph, with the values that nobody uses behind it."""

    __slots__ = ("args", "done", "function", "kwargs", "random")

    def __init__(
        self, function: Callable[..., Any], args: list[_Getter], kwargs: dict[str, _Getter], *, random: bool
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.random = random
        self.done: list[int] = []


class Graphs:
    """The graphs of a session."""

    __slots__ = ("_device", "_functions", "_generator", "_store")

    def __init__(self, store: Store, device: torch.device, generator: Generator) -> None:
        self._store = store
        self._device = device
        self._generator = generator
        self._functions: dict[str, Callable[..., Any]] = {}

    def executable(self, template: messages.Template) -> Executable | None:
        """The template of a graph; None where it names an operator.

        Raises:
            TemplateError: there is no such graph.
        """
        if not template.operator.startswith(PREFIX):
            return None
        function = self._functions.get(template.operator)
        if function is None:
            raise TemplateError(f"there is no {template.operator[:40]}")
        return Executable(template, self._store, self._device, function)

    def put(self, graph: messages.Graph) -> None:
        """Keep a graph.

        Raises:
            TemplateError, NotAllowed: it can't be run.
        """
        if graph.inputs < 0:
            raise TemplateError(f"a graph can't take {graph.inputs} tensors")
        self._functions[f"{PREFIX}{graph.number}"] = self._compile(graph)

    def _compile(self, graph: messages.Graph) -> Callable[..., Any]:
        last: dict[int, int] = {}
        steps: list[_Step] = []
        for index, node in enumerate(graph.nodes):
            known = graph.inputs + index
            used: set[int] = set()
            step = _Step(
                find(node.operator),
                [self._getter(arg, known, used) for arg in node.args],
                {name: self._getter(arg, known, used) for name, arg in node.kwargs.items()},
                random=is_random(node.operator, find(node.operator)),
            )
            steps.append(step)
            last.update(dict.fromkeys(used, index))
        total = graph.inputs + len(graph.nodes)
        kept: set[int] = set()
        outputs = [self._getter(output, total, kept) for output in graph.outputs]
        for number, index in last.items():
            if number >= graph.inputs and number not in kept:
                steps[index].done.append(number)
        generator, inputs = self._generator, graph.inputs

        def run(*args: torch.Tensor) -> Sequence[Any]:
            if len(args) != inputs:
                raise TemplateError(f"the graph takes {inputs} tensors, {len(args)} came")
            values: list[Any] = list(args)
            for step in steps:
                positional = [get(values) for get in step.args]
                named = {name: get(values) for name, get in step.kwargs.items()}
                if step.random:
                    with generator:
                        values.append(step.function(*positional, **named))
                else:
                    values.append(step.function(*positional, **named))
                for number in step.done:
                    values[number] = None
            return [get(values) for get in outputs]

        return run

    def _getter(self, arg: messages.GraphArg, known: int, used: set[int]) -> _Getter:
        match arg:
            case messages.ValueArg(number, item):
                if not 0 <= number < known:
                    raise TemplateError(f"value {number} of the graph is used before it is made")
                used.add(number)
                if item < 0:
                    return lambda values: values[number]
                return lambda values: values[number][item]
            case messages.ValuesArg(items):
                getters = [self._getter(item, known, used) for item in items]
                return lambda values: [get(values) for get in getters]
            case _:
                value = constant(arg, self._device)
                return lambda _: value

    def clear(self) -> None:
        """Forget all."""
        self._functions.clear()
