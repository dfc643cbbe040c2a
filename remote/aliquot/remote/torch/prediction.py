"""What a call will return, found out once for all calls that look like it.

The operator is run on meta tensors, which have sizes and strides and no elements. What that says is the prediction; the
server makes it true, whatever layout its own kernel chose. Operators whose results depend on elements, or that have no
meta kernel, are asked for instead: one wait each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
import torch._meta_registrations  # the meta kernels that are written in Python

from aliquot.remote.core import messages
from aliquot.remote.core.bounds import TEMPLATES_MAX
from aliquot.remote.core.words import TEMPLATES_FROM
from aliquot.remote.errors import RemoteError
from aliquot.remote.torch import tensor as tensors
from aliquot.remote.torch.layouts import layout_of
from aliquot.remote.torch.session import Session
from aliquot.remote.torch.tensor import SCALARS, Allocation, Entry, Layout, RemoteTensor, issue, wrap
from aliquot.remote.torch.transfer import upload

_aten = torch.ops.aten

_SHAPED_BY_SCALARS = ("aten::arange", "aten::range")
_ALIASES_UNDECLARED = {_aten._unsafe_view.default}
_WHOLE = {_aten.linear.default, _aten.silu_backward.default, _aten.mish_backward.default}
"""Composite operators that travel whole: a CPU has kernels of its own for them, which round otherwise."""

_MISPREDICTED = {
    _aten._embedding_bag.default,
    _aten._embedding_bag_forward_only.default,
}
"""Operators whose meta kernels say other sizes than their real ones have."""

_NEED_WEIGHTS = 10
"""Place of the argument of multi-head attention that asks for its weights."""
_entries_left = TEMPLATES_MAX - TEMPLATES_FROM


def scalars_of(func: Any) -> frozenset[int | str]:
    """Places of an operator whose numbers are values: its results' sizes don't depend on them."""
    known = SCALARS.get(func)
    if known is None:
        places: set[int | str] = set()
        if not func.name().startswith(_SHAPED_BY_SCALARS):
            for index, argument in enumerate(func._schema.arguments):
                kind = str(argument.type)
                real = str(getattr(argument, "real_type", kind))
                if kind in ("number", "Optional[number]", "List[number]") or (
                    kind in ("float", "Optional[float]") and not real.startswith("List")
                ):
                    places.update((index, argument.name))
        # An operand that is a tensor by its schema may come as a plain number.
        for index, argument in enumerate(func._schema.arguments):
            if str(argument.type) in ("Tensor", "Optional[Tensor]"):
                places.update((index, argument.name))
        known = SCALARS[func] = frozenset(places)
    return known


def miss(session: Session | None, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call an operator that was not called like this before."""
    kernel = _own_kernel(func)
    if kernel is not None:
        return func._op_dk(kernel, *args, **kwargs)
    if func not in SCALARS:
        scalars_of(func)
        return issue(session, func, args, kwargs)
    session, args, kwargs = _gather(session, func, args, kwargs)
    key = _key(func, args, kwargs)
    entry = session.entries.get(key)
    if entry is None:
        entry = _untraced(_predict, session, func, args, kwargs)
        if len(session.entries) >= _entries_left:
            _forget(session)
        session.entries[key] = entry
    return issue(session, func, args, kwargs)


tensors.miss = miss


def _untraced(function: Callable[..., Entry], *args: Any) -> Entry:
    """Call a function that counts with sizes: where TorchScript traces this thread, they are tensors, so in another."""
    if torch._C._get_tracing_state() is None:
        return function(*args)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *args).result()


@cache
def _own_kernel(func: Any) -> torch._C.DispatchKey | None:
    """Of an operator that the program has defined itself (`torch.library`): it runs here, on our tensors."""
    if func.namespace in ("aten", "aliquot"):
        return None
    keys = (torch._C.DispatchKey.CompositeExplicitAutograd, torch._C.DispatchKey.CUDA)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return next((key for key in keys if has(func.name(), key)), None)


def _forget(session: Session) -> None:
    """Make room: what was seen first goes, an eighth at a time. What is still in use is defined again."""
    session.flush()
    session.evictions += 1
    for key in list(session.entries)[: _entries_left // 8]:
        entry = session.entries.pop(key)
        if entry.number:
            session.free_templates.append(entry.number)


def _key(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    key: list[Any] = [func]
    for place, value in enumerate(args):
        tensors._add(value, place, func, key, [])
    for name, value in kwargs.items():
        key.append(name)
        tensors._add(value, name, func, key, [])
    return tuple(key)


def _gather(
    session: Session | None,
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[Session, Sequence[Any], dict[str, Any]]:
    """Bring every tensor to one session, as far as other devices would.

    Raises:
        RuntimeError: tensors are on different devices, or a generator is given.
    """
    if session is None:
        session = tensors._session_in(args, kwargs)
    if session is None:
        raise RemoteError(f"{func} was called for a remote device without a tensor of one")
    indices = func.name().startswith(("aten::index", "aten::_index", "aten::_unsafe_index", "aten::_ctc_loss"))

    def bring(value: Any) -> Any:
        if isinstance(value, RemoteTensor):
            if value._layout.session is not session:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, "
                    f"{session.device} and {value.device}! (when calling {func})"
                )
            return value
        if isinstance(value, torch.Tensor):
            if value.device.type == "cpu" and (value.dim() == 0 or indices):
                return upload(session, value)
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                f"{session.device} and {value.device}! (when calling {func})"
            )
        if isinstance(value, torch.Generator):
            raise RemoteError(
                f"{func}: a generator of this process can't draw on {session.device}; leave it out and seed the "
                "device by torch.manual_seed"
            )
        if isinstance(value, (list, tuple)):
            return [bring(item) for item in value]
        return value

    return session, [bring(value) for value in args], {name: bring(value) for name, value in kwargs.items()}


# --------------------------------------------------------------------------------------------------------- templates


def constant(value: Any) -> messages.ConstArg | messages.ComplexArg | messages.NamedArg | messages.DeviceArg | None:
    """How a value that is neither tensor, number nor list is told to the server; None: it can't travel."""
    match value:
        case None | bool() | str():
            return messages.ConstArg(value)
        case complex():
            return messages.ComplexArg(value.real, value.imag)
        case torch.dtype() | torch.layout() | torch.memory_format():
            return messages.NamedArg(type(value).__name__, str(value).removeprefix("torch."))
        case torch.device():
            return messages.DeviceArg()
        case _:
            return None


def argument(value: Any, place: int | str, func: Any) -> messages.Arg:
    """How an argument is told to the server.

    Raises:
        RemoteError: a value that can't travel.
    """
    varies = place in scalars_of(func)
    match value:
        case RemoteTensor():
            layout = value._layout
            return messages.TensorArg(layout.name, layout.shape, layout.stride, value._offset != 0)
        case bool():
            return messages.ConstArg(value)
        case float():
            return messages.FloatArg() if varies else messages.ConstArg(value)
        case int():
            return messages.IntArg() if varies and -(1 << 63) <= value < 1 << 63 else messages.ConstArg(value)
        case list() | tuple():
            if value and not varies and all(isinstance(item, (bool, int, float)) for item in value):
                return messages.NumbersArg(list(value))
            return messages.ListArg([argument(item, place, func) for item in value])
        case _:
            told = constant(value)
            if told is None:
                raise RemoteError(f"{func}: a value of type {type(value).__name__} can't be sent to a remote device")
            return told


def _on_meta(value: Any) -> Any:
    if isinstance(value, RemoteTensor):
        layout = value._layout
        return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, (list, tuple)):
        return [_on_meta(item) for item in value]
    return value


def _predict(session: Session, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Entry:
    entry = Entry()
    if func._can_decompose() and func not in _WHOLE:
        kept = func
        entry.run = lambda args, kwargs: kept.decompose(*args, **kwargs)
        return entry
    meta_args = [_on_meta(value) for value in args]
    meta_kwargs = {name: _on_meta(value) for name, value in kwargs.items()}
    asked = func in _MISPREDICTED or torch.Tag.data_dependent_output in func.tags
    if asked or func.name() in session.mispredicted:
        entry.run = lambda args, kwargs: ask(session, func, args, kwargs)
        return entry
    try:
        with torch.no_grad():
            returned = _made(func, args, func(*meta_args, **meta_kwargs))
    except NotImplementedError:
        entry.run = lambda args, kwargs: ask(session, func, args, kwargs)
        return entry
    returned = _corrected(session, func, args, returned)
    schema = func._schema
    if func in _ALIASES_UNDECLARED:
        return _view(entry, returned, meta_args[0], 0)
    aliases = [item.alias_info for item in schema.returns]
    if aliases and aliases[0] is not None and not aliases[0].is_write and len(aliases) == 1:
        source = _source(schema, aliases[0])
        if source is not None:
            return _view(entry, returned, meta_args[source], source)
    return _computed(session, entry, func, args, kwargs, returned)


def _corrected(session: Session, func: Any, args: Sequence[Any], returned: Any) -> Any:
    """A prediction, where a CPU's kernel is known to differ from the meta kernel."""
    if makes_no_statistics(session, func, args):
        return returned[0], returned[1].new_empty(0), returned[2].new_empty(0)
    weight = _WEIGHT_OF_NORM.get(func)
    if weight is not None and session.welcome.device == "cpu":
        of_weight = args[weight].dtype if len(args) > weight and args[weight] is not None else args[0].dtype
        kept = args[0].dtype if of_weight is args[0].dtype else torch.float32
        return returned[0], returned[1].to(kept), returned[2].to(kept)
    return returned


_WEIGHT_OF_NORM = {_aten.native_layer_norm.default: 2, _aten.native_group_norm.default: 1}
"""Which argument it is: a CPU keeps statistics in the type of the input, unless the weight has another."""


def makes_no_statistics(session: Session, func: Any, args: Sequence[Any]) -> bool:
    """Whether a CPU's batch norm, evaluated, leaves its second and third result empty, as no meta kernel says."""
    return session.welcome.device == "cpu" and (
        func is _aten._native_batch_norm_legit_no_training.default
        or (func is _aten.native_batch_norm.default and not args[5])
    )


def _made(func: Any, args: Sequence[Any], returned: Any) -> Any:
    """What is really made, where a meta kernel says more than that."""
    if func is _aten._native_multi_head_attention.default and len(args) > _NEED_WEIGHTS and not args[_NEED_WEIGHTS]:
        return returned[0], None
    return returned


def _source(schema: Any, alias: Any) -> int | None:
    """Which argument is viewed. Of a list of views the schema only says that they are some: of the one that may be."""
    for index, item in enumerate(schema.arguments):
        of = item.alias_info
        if of is not None and not of.is_write and (not alias.before_set or of.before_set & alias.before_set):
            return index
    return None


def _view(entry: Entry, returned: Any, base: torch.Tensor, source: int) -> Entry:
    """Views are made here: nothing is sent."""
    many = isinstance(returned, (list, tuple))
    layouts: dict[int, Layout] = {}
    described = [
        (item.dtype, tuple(item.shape), item.stride(), item.storage_offset())
        for item in (returned if many else [returned])
    ]
    before, after = base.dtype.itemsize, described[0][0].itemsize if described else 1

    def run(args: Sequence[Any], _: dict[str, Any]) -> Any:
        viewed: RemoteTensor = args[source]
        allocation, offset = viewed._allocation, viewed._offset
        session = allocation.session
        if before != after:
            offset = offset * before // after
        made = []
        for index, (dtype, shape, stride, further) in enumerate(described):
            layout = layouts.get(index)
            if layout is None:
                layout = layouts[index] = layout_of(session, dtype, shape, stride)
            made.append(wrap(allocation, layout, offset + further))
        return made if many else made[0]

    entry.run = run
    return entry


def _computed(
    session: Session,
    entry: Entry,
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    returned: Any,
) -> Entry:
    """Results that are new, or arguments that were written."""
    schema = func._schema
    places = returned if isinstance(returned, tuple) else (returned,)
    if not schema.returns:
        places = ()
    results: list[messages.Result | None] = []
    builders: list[Callable[[list[RemoteTensor], Sequence[Any], dict[str, Any]], Any]] = []
    for place, (value, kind) in enumerate(zip(places, schema.returns, strict=True)):
        if kind.alias_info is not None and kind.alias_info.is_write:
            builders.append(_written(schema, kind.alias_info))
            results.append(None)
            continue
        items = value if isinstance(value, list) else [value]
        if not all(item is None or isinstance(item, torch.Tensor) for item in items):
            entry.run = lambda args, kwargs: ask(session, func, args, kwargs)
            return entry
        first = len(entry.layouts)
        for item in items:
            if item is None:
                results.append(None)
                continue
            layout = layout_of(session, item.dtype, item.shape, item.stride())
            entry.layouts.append(layout)
            results.append(messages.Result(layout.name, layout.shape, layout.stride))
        builders.append(_taken(first, [item is not None for item in items], isinstance(value, list)))
        del place
    _check_written(schema, args, kwargs, func)
    if len(entry.layouts) == 1 and len(builders) == 1 and not isinstance(returned, (list, tuple)):
        entry.layout = entry.layouts[0]
    if len(builders) == 1 and not isinstance(returned, tuple):
        entry.build = builders[0]
    elif not builders:
        entry.build = lambda *_: None
    else:
        entry.build = lambda made, args, kwargs: tuple(build(made, args, kwargs) for build in builders)
    if not any(result is not None for result in results):
        results = []
    entry.number = session.new_template()
    session.define(_template(entry.number, func, args, kwargs, results))
    return entry


def _template(
    number: int,
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    results: list[messages.Result | None],
) -> messages.Template:
    return messages.Template(
        number,
        func.name(),
        [argument(value, place, func) for place, value in enumerate(args)],
        {name: argument(value, name, func) for name, value in kwargs.items()},
        results,
    )


def _taken(
    first: int,
    there: list[bool],
    many: bool,  # noqa: FBT001
) -> Callable[[list[RemoteTensor], Sequence[Any], dict[str, Any]], Any]:
    numbers: list[int | None] = []
    for is_there in there:
        numbers.append(first if is_there else None)
        first += is_there
    if many:
        return lambda made, *_: [None if number is None else made[number] for number in numbers]
    number = numbers[0]
    return lambda made, *_: None if number is None else made[number]


def _written(schema: Any, alias: Any) -> Callable[[list[RemoteTensor], Sequence[Any], dict[str, Any]], Any]:
    for index, item in enumerate(schema.arguments):
        if item.alias_info is not None and item.alias_info.before_set & alias.before_set:
            name = item.name
            return lambda _, args, kwargs: kwargs[name] if name in kwargs else args[index]
    raise RemoteError(f"{schema.name} returns what it does not take")


def _check_written(schema: Any, args: Sequence[Any], kwargs: dict[str, Any], func: Any) -> None:
    """Raise where an argument that is written may hold one element twice: no result is right there."""
    for index, item in enumerate(schema.arguments):
        if item.alias_info is None or not item.alias_info.is_write:
            continue
        value = kwargs.get(item.name, args[index] if index < len(args) else None)
        if isinstance(value, RemoteTensor) and any(
            size > 1 and step == 0 for size, step in zip(value._layout.shape, value._layout.stride, strict=True)
        ):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory "
                f"location. Please clone() the tensor before performing the operation. ({func})"
            )


# ------------------------------------------------------------------------------------------------------------ asking


def ask(session: Session, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call an operator and wait for what it returned, as nobody can tell before."""
    words: list[int] = []
    key: list[Any] = []
    for place, value in enumerate(args):
        tensors._add(value, place, func, key, words)
    for name, value in kwargs.items():
        tensors._add(value, name, func, key, words)
    schema = func._schema
    written = [item.alias_info is not None and item.alias_info.is_write for item in schema.returns]
    handles = [-1 if is_written else session.new_handle() for is_written in written]
    many = [index for index, item in enumerate(schema.returns) if str(item.type).startswith("List[Tensor")]
    if many:
        handles += [session.new_handle() for _ in range(64)]
    request = session.request()
    site = session.site(tensors._getframe(1))
    session.counters.operators += 1
    reply, _ = session.ask(
        messages.Call(request, site, _template(0, func, args, kwargs, []), words, handles),
        request,
        site,
        func.name().removeprefix("aten::"),
    )
    made: list[Any] = []
    used: set[int] = set()
    for index, value in enumerate(reply.values):
        if index < len(written) and written[index]:
            made.append(_written(schema, schema.returns[index].alias_info)([], args, kwargs))
        elif value.handle is not None and value.handle >= 0:
            layout = layout_of(session, getattr(torch, value.dtype), value.shape, value.stride)
            used.add(value.handle)
            made.append(wrap(Allocation(session, value.handle, layout.extent_bytes), layout, 0))
        else:
            made.append(value.plain)
    session.free_handles.extend(handle for handle in handles if handle >= 0 and handle not in used)
    if not schema.returns:
        return None
    if many:
        return made
    return made[0] if len(schema.returns) == 1 else tuple(made)
