"""`torch.compile(model, backend="aliquot")`: what the compiler makes of a function is sent once and run by its number.

Dynamo traces the function, AOTAutograd makes a forward and a backward graph of PyTorch's operators of it, and each is
one small message from then on. Only operators of the allow-list are sent. What can't be sent runs operator by operator,
with the same results and a warning that says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import innermost_backend
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.variables import builder

from aliquot.remote.errors import RemoteError
from aliquot.remote.hiding import hide
from aliquot.remote.torch import tensor as tensors
from aliquot.remote.torch.graphs import Sent
from aliquot.remote.torch.layouts import layout_of
from aliquot.remote.torch.prediction import makes_no_statistics
from aliquot.remote.torch.session import Session, naming
from aliquot.remote.torch.tensor import RemoteTensor
from aliquot.remote.torch.transfer import upload

_VARIANTS_MAX = 16
"""Of one graph: ways in which its arguments lie in memory. More run operator by operator."""


class RemoteCompileWarning(UserWarning):
    """A function, or a part of it, runs operator by operator: its text says why."""


def backend(module: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The compiler's part that is ours. See the module's docstring. `options` have no meaning here and are refused.

    Raises:
        RemoteError: options were given.
    """
    if options:
        raise RemoteError(f"the backend aliquot has no options, but was given {', '.join(sorted(options))}")
    run: Callable[..., Any] = module.forward
    if any(_is_symbolic(example) for example in examples):
        _warn(
            "its sizes changed from one call to the next, or it computes with numbers of the program, and a graph is "
            "sent for fixed ones; torch.compile(…, dynamic=False) sends one for each size"
        )
        return run
    if not any(_is_remote(example) for example in examples):
        _warn("it has no tensor of a remote device")
        return run
    try:
        with _described():
            compiled: Callable[..., Any] = aot_autograd(fw_compiler=_compile)(module, examples)
    except RestartAnalysis:  # no failure: it is traced anew, by what was learnt
        raise
    except Exception as error:  # noqa: BLE001 - whatever a trace ends in, the function itself still runs
        first, _, _ = str(error).strip().partition("\n")
        _warn(f"{type(error).__name__}: {first or 'no reason given'}")
        return run
    return compiled


def _is_symbolic(example: Any) -> bool:
    if isinstance(example, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in (*example.shape, *example.stride()))
    return isinstance(example, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_remote(example: Any) -> bool:
    if type(example) is RemoteTensor:
        return True
    return isinstance(example, torch.Tensor) and example.device.type == "aliquot"


def _warn(why: str) -> None:
    warnings.warn(f"a compiled function runs operator by operator: {why}", RemoteCompileWarning, stacklevel=2)


# -------------------------------------------------------------------------------------------------------------- graphs


def _compile(module: fx.GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
    graph = _Compiled(module)

    def run(args: list[Any]) -> list[Any]:
        taken = list(args)
        args.clear()
        return graph(taken)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _Compiled:
    """A forward or a backward: the part that the server does, and the views that are made here of what it takes and
    returns.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._sent: dict[Any, Sent] = {}
        self._right: set[Sent] = set()
        self._refused = False
        self._attributes = [node for node in module.graph.nodes if node.op == "get_attr"]
        self._constants: dict[int, list[RemoteTensor]] = {}
        self._returned: list[fx.Node | None] = []
        self._remote, self._made = self._part()

    def _part(self) -> tuple[fx.GraphModule, list[fx.Node]]:
        """The graph without what is made here, and the nodes whose tensors it returns."""
        output = next(node for node in reversed(self._module.graph.nodes) if node.op == "output")
        results = output.args[0] if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
        self._returned = [result if isinstance(result, fx.Node) else None for result in results]
        wanted = {_behind(node) for node in self._returned if node is not None}
        made: list[fx.Node] = []
        for node in self._returned:
            if node is None:
                continue
            root = _root(node)
            # A view of what is returned anyway, or of an argument, is made here; any other is all that is left of it.
            base = root if root.op in ("placeholder", "get_attr") or root in wanted else _behind(node)
            if base.op not in ("placeholder", "get_attr") and base not in made:
                made.append(base)
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self._module.graph.nodes:
            if node.op != "output":
                copies[node] = graph.node_copy(node, lambda each: copies[each])
        graph.output([copies[node] for node in made])
        graph.eliminate_dead_code(lambda node: node.op == "get_attr" or node.is_impure())
        return fx.GraphModule(self._module, graph), made

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run it there."""
        if self._refused:
            return self._one_by_one(args)
        try:
            sent, given = self._send(args)
        except RemoteError as error:
            self._refused = True
            _warn(str(error))
            return self._one_by_one(args)
        made = sent.run(given, sent.session.site(tensors._getframe(1)))
        if not self._tried(sent):
            return self._one_by_one(args)
        values: dict[fx.Node, Any] = dict(zip(self._made, made, strict=True))
        inputs = [node for node in self._module.graph.nodes if node.op == "placeholder"]
        values.update(zip(inputs, args, strict=True))
        values.update(zip(self._attributes, given[len(inputs) :], strict=True))
        with torch.no_grad():
            return [None if node is None else _value(node, values) for node in self._returned]

    def _send(self, args: list[Any]) -> tuple[Sent, list[RemoteTensor]]:
        session = next((arg._layout.session for arg in args if isinstance(arg, RemoteTensor)), None)
        if session is None:
            raise RemoteError("a part of it has no tensor of a remote device")
        given = [*(_there(session, arg) for arg in args), *self._constants_of(session)]
        key = tuple((arg._layout, arg._offset != 0) for arg in given)
        sent = self._sent.get(key)
        if sent is None:
            if len(self._sent) >= _VARIANTS_MAX:
                raise RemoteError(f"its arguments lie in more than {_VARIANTS_MAX} ways in memory")
            layouts = [_layout(session, node) for node in self._made]
            sent = self._sent[key] = Sent(session, self._remote, given, layouts)
        return sent, given

    def _tried(self, sent: Sent) -> bool:
        """Wait for the first run: whether the server makes what was foreseen. A graph writes to nothing, so that it can
        be done otherwise. Raises what failed before it, or in it.
        """
        if sent in self._right or sent.session.recording is not None:
            return True
        try:
            sent.session.synchronize()
        except RemoteError:
            if not sent.failed:
                raise
            self._refused = True
            _warn("the server makes other sizes of it than were foreseen here")
            return False
        self._right.add(sent)
        return True

    def _constants_of(self, session: Session) -> list[RemoteTensor]:
        """Tensors that the function has in itself, brought there once."""
        if not self._attributes:
            return []
        found = self._constants.get(session.index)
        if found is None or any(each._layout.session is not session for each in found):
            found = [_there(session, getattr(self._module, str(node.target))) for node in self._attributes]
            self._constants[session.index] = found
        return found

    def _one_by_one(self, args: list[Any]) -> list[Any]:
        results = self._module.forward(*args)
        return list(results) if isinstance(results, (list, tuple)) else [results]


def _there(session: Session, value: Any) -> RemoteTensor:
    if isinstance(value, RemoteTensor) and value._layout.session is session:
        return value
    if isinstance(value, torch.Tensor) and not isinstance(value, RemoteTensor) and value.device.type == "cpu":
        return upload(session, value)
    what = f"a tensor of {value.device}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    raise RemoteError(f"it takes {what} beside those of {session.device}")


def _layout(session: Session, node: fx.Node) -> tensors.Layout:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise RemoteError(f"a graph can return tensors, not what {node.target} makes")
    source = node.args[0] if getattr(node.target, "__name__", "") == "getitem" else None
    if isinstance(source, fx.Node) and node.args[1] != 0 and makes_no_statistics(session, source.target, source.args):
        return layout_of(session, value.dtype, (0,), (1,))
    return layout_of(session, value.dtype, value.shape, value.stride())


def _same_elements(node: fx.Node) -> fx.Node | None:
    """Of a view that is an operator by itself: what it is a view of."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return None
    returns, arguments = target._schema.returns, target._schema.arguments
    if len(returns) != 1 or str(returns[0].type) != "Tensor":
        return None
    alias = returns[0].alias_info
    source = arguments[0].alias_info if arguments else None
    if alias is None or alias.is_write or source is None or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0]


_AS_THEY_ARE = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def _behind(node: fx.Node) -> fx.Node:
    """The node whose tensor this one is, under another name."""
    while node.target in _AS_THEY_ARE and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _root(node: fx.Node) -> fx.Node:
    """What a node is, in the end, a view of."""
    while (source := _same_elements(node)) is not None:
        node = source
    return node


def _value(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """A tensor that is there, or a view of one."""
    node = _behind(node)
    if node not in values:
        source = _same_elements(node)
        assert source is not None
        target: Any = node.target
        values[node] = target(_value(source, values), *node.args[1:], **node.kwargs)
    return values[node]


# ------------------------------------------------------------------------------------------------------------- tracing


@contextmanager
def _described() -> Any:
    token = naming.set(True)
    try:
        yield
    finally:
        naming.reset(token)


def _is_ours(function: Any) -> bool:
    innermost = innermost_backend(function)
    return getattr(innermost, "compiler_fn", innermost) is backend


_plain_wrap = builder.VariableBuilder._wrap
_plain_infer = builder.infer_subclass_type


def _wrap(self: Any, value: Any) -> Any:
    """Takes our tensors for plain ones of their device. The compiler leaves alone tensors whose class does their work,
    as they would have to be taken apart; ours are sent whole.
    """
    if type(value) is RemoteTensor and _is_ours(self.tx.output.compiler_fn):
        with _described():
            return self.wrap_tensor(value)
    return _plain_wrap(self, value)


def _infer_subclass_type(value: Any) -> Any:
    return None if type(value) is RemoteTensor else _plain_infer(value)


builder.VariableBuilder._wrap = _wrap  # type: ignore[method-assign]
builder.infer_subclass_type = _infer_subclass_type
hide("aliquot.remote")
