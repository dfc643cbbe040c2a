"""A traced function that is sent as a list of calls once, and then run by its number.

A forward pass of a thousand operators is one small message then. It writes to no tensor; its parameters are read where
they are, so what an optimizer changes in them is seen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from aliquot.remote.core import messages
from aliquot.remote.core.bounds import GRAPHS_MAX
from aliquot.remote.core.words import int_words
from aliquot.remote.errors import RemoteError
from aliquot.remote.operators import NotAllowed, find
from aliquot.remote.torch import tensor as tensors
from aliquot.remote.torch.prediction import constant
from aliquot.remote.torch.session import Session
from aliquot.remote.torch.tensor import Layout, RemoteTensor

_GETITEM = "getitem"


class Sent:
    """A list of calls that the server has, run by one operator of the stream, for arguments that lie in one way."""

    def __init__(self, session: Session, traced: fx.GraphModule, given: list[RemoteTensor], made: list[Layout]) -> None:
        """Send it. `given`: its arguments, or others like them; `made`: how what it returns will lie.

        Raises:
            RemoteError: it has what can't be sent, or there are too many.
        """
        translated = Translation(traced)
        self.session = session
        self.layouts = made
        self.evictions = session.evictions
        self.graph = session.take_graph(GRAPHS_MAX)
        self.number = session.new_template()
        session.send(messages.Graph(self.graph, translated.inputs, translated.nodes, translated.outputs))
        session.define(
            messages.Template(
                self.number,
                f"graph::{self.graph}",
                [
                    messages.TensorArg(arg._layout.name, arg._layout.shape, arg._layout.stride, arg._offset != 0)
                    for arg in given
                ],
                {},
                [messages.Result(layout.name, layout.shape, layout.stride) for layout in made],
            )
        )

    @property
    def failed(self) -> bool:
        """Whether the server makes other sizes of it than were foreseen here."""
        return f"graph::{self.graph}" in self.session.mispredicted

    def run(self, given: list[RemoteTensor], site: int) -> list[RemoteTensor]:
        """Issue it; returns what will be there."""
        words = [self.number, site]
        for arg in given:
            words.append(arg._allocation.handle)
            if arg._offset:
                words.extend(int_words(arg._offset))
        self.session.counters.operators += 1
        return tensors.put(self.session, words, self.layouts)


class Translation:
    """A traced graph as calls that name operators and earlier values."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.nodes: list[messages.Node] = []
        self.inputs = sum(node.op in ("placeholder", "get_attr") for node in module.graph.nodes)
        self.outputs: list[messages.ValueArg] = []
        self._values: dict[fx.Node, messages.ValueArg] = {}
        number = 0
        for node in module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._values[node] = messages.ValueArg(number)
                number += 1
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._return(node.args[0])
            else:
                raise RemoteError(f"a graph with {node.op} {node.target} can't be sent")

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        if getattr(target, "__name__", "") == _GETITEM:
            source = self._values[node.args[0]]  # type: ignore[index]
            self._values[node] = messages.ValueArg(source.number, int(node.args[1]))  # type: ignore[arg-type]
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise RemoteError(f"a graph that calls {target} can't be sent")
        try:
            find(target.name())
        except NotAllowed as error:
            raise RemoteError(str(error)) from None
        self.nodes.append(
            messages.Node(
                target.name(),
                [self._arg(arg) for arg in node.args],
                {name: self._arg(arg) for name, arg in node.kwargs.items() if name != "pin_memory"},
            )
        )
        self._values[node] = messages.ValueArg(self.inputs + len(self.nodes) - 1)

    def _arg(self, value: Any) -> messages.GraphArg:
        if isinstance(value, fx.Node):
            return self._values[value]
        match value:
            case int() | float():
                return messages.ConstArg(value)
            case list() | tuple():
                if value and all(isinstance(item, (bool, int, float)) for item in value):
                    return messages.NumbersArg(list(value))
                return messages.ValuesArg([self._arg(item) for item in value])
            case _:
                told = constant(value)
                if told is None:
                    raise RemoteError(f"a graph with a value of type {type(value).__name__} can't be sent")
                return told

    def _return(self, results: Any) -> None:
        for result in results if isinstance(results, (list, tuple)) else [results]:
            if not isinstance(result, fx.Node):
                raise RemoteError(f"a graph can return tensors, not {type(result).__name__}")
            self.outputs.append(self._values[result])
