"""A step that is recorded once and then run again by one small message.

What is recorded is what reaches the server, below autograd: forward, backward and the optimizer's work. Two recordings
must say the same before one is believed. The step's Python code is not run again, so it may depend on nothing but its
tensors; what can be seen of it from outside (sizes and types of arguments, an optimizer's numbers, a module's mode) is
compared at each call, and where it changed, the step is recorded anew.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch.utils import _pytree as trees

from aliquot.remote.core import messages
from aliquot.remote.core.recording import NotRepeatable, Step, compare, read, rename
from aliquot.remote.core.words import REPLAY, pack
from aliquot.remote.errors import CaptureError, RemoteError
from aliquot.remote.torch import tensor as tensors
from aliquot.remote.torch.backend import session_of
from aliquot.remote.torch.session import Session
from aliquot.remote.torch.tensor import Allocation, RemoteTensor, wrap

P = ParamSpec("P")
R = TypeVar("R")

_VARIANTS_MAX = 16


def capture(step: Callable[P, R], *, watch: tuple[object, ...] = ()) -> Captured[P, R]:
    """A function that does what `step` does, from its fourth call on by one message to the server.

    Its first call runs as it is, the second and third are recorded and compared. Tensors among its arguments may change
    from call to call; other sizes, types or values are recorded as another variant. Tensors that it returns are copies.

    Modules and optimizers that `step` refers to are found by themselves; name others in `watch`.
    """
    return Captured(step, watch)


class _Variant:
    """One recording: of one set of sizes and numbers."""

    def __init__(self) -> None:
        self.calls = 0
        self.inputs: list[RemoteTensor] = []
        self.first: Step | None = None
        self.number = -1
        self.evictions = 0
        self.own: list[int] = []
        self.alive: list[Allocation] = []
        self.outputs: list[Any] = []
        self.tree: Any = None


class Captured(Generic[P, R]):
    """A captured step. Calls count as calls of the step."""

    def __init__(self, step: Callable[P, R], watch: tuple[object, ...]) -> None:
        self._step = step
        self._watched = [*watch, *_seen_by(step)]
        self._variants: dict[Any, _Variant] = {}
        self._session: Session | None = None
        self.recordings = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the step.

        Raises:
            CaptureError: it can't be repeated as it is; why and where. It was done all the same, but for waits.
        """
        leaves, tree = trees.tree_flatten((args, kwargs))
        session = self._session = self._session or self._find_session(leaves)
        key = (tree, tuple(_key(leaf) for leaf in leaves), tuple(_key_of_object(item) for item in self._watched))
        variant = self._variants.get(key)
        if variant is None or (variant.number >= 0 and variant.evictions != session.evictions):
            if variant is None and len(self._variants) >= _VARIANTS_MAX:
                self._drop(next(iter(self._variants)))
            elif variant is not None:
                self._drop(key)
            variant = self._variants[key] = _Variant()
        variant.calls += 1
        if variant.number < 0 and variant.calls == 1:
            return self._step(*args, **kwargs)
        self._take_inputs(session, variant, leaves)
        if variant.number >= 0:
            return self._replay(session, variant)
        return self._record(session, variant, leaves, tree)

    def _find_session(self, leaves: list[Any]) -> Session:
        for leaf in leaves:
            if isinstance(leaf, RemoteTensor):
                return leaf._layout.session
        for item in self._watched:
            found = item.parameters() if isinstance(item, torch.nn.Module) else ()
            for parameter in found:
                if isinstance(parameter, RemoteTensor):
                    return parameter._layout.session
        return session_of()

    def _take_inputs(self, session: Session, variant: _Variant, leaves: list[Any]) -> None:
        """Put the arguments where the recorded step looks for them."""
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        with torch.no_grad():
            if not variant.inputs:
                variant.inputs = [
                    torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=session.device)  # type: ignore[misc]
                    for leaf in given
                ]
            for place, leaf in zip(variant.inputs, given, strict=True):
                place.copy_(leaf)

    def _record(self, session: Session, variant: _Variant, leaves: list[Any], tree: Any) -> R:
        places = iter(variant.inputs)
        taken = [
            next(places).detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        args, kwargs = trees.tree_unflatten(taken, tree)
        gc.collect()
        session.flush()
        session.recording, session.made = [], []
        try:
            result = self._step(*args, **kwargs)
            gc.collect()
            session.flush()
            words, made = session.recording, session.made
        finally:
            session.recording = None
        self.recordings += 1
        try:
            step = read(words, session.shapes)
            if variant.first is None:
                variant.first = step
            else:
                compare(variant.first, step, session.shapes)
                self._keep(session, variant, step, [a for a in (ref() for ref in made) if a is not None], result)
        except NotRepeatable as error:
            variant.calls, variant.first = 0, None
            where = session.describe(error.site)
            raise CaptureError(
                f"the step can't be captured: {error}{f'{chr(10)}  at {where}' if where else ''}"
            ) from None
        return self._copies(result)

    def _keep(self, session: Session, variant: _Variant, step: Step, alive: list[Allocation], result: R) -> None:
        variant.alive = alive
        words, variant.own = rename(step, session.shapes, {each.handle for each in alive}, session.new_handle)
        variant.outputs, variant.tree = trees.tree_flatten(result)
        variant.evictions = session.evictions
        width, data = pack(words)
        number, request = session.take_recording(), session.request()
        try:
            session.ask(messages.Record(request, number, data, width[0], [each.handle for each in alive]), request)
        except RemoteError:
            session.drop_recording(number, variant.own)
            raise
        variant.number = number

    def _replay(self, session: Session, variant: _Variant) -> R:
        site = session.site(tensors._getframe(2))
        session.pending.extend((REPLAY, site, variant.number))
        session.counters.operators += 1
        session.counters.replays += 1
        result: R = self._copies(trees.tree_unflatten(variant.outputs, variant.tree))
        session.flush()
        return result

    @staticmethod
    def _copies(result: R) -> R:
        """The next run writes over what this one returned, so a copy goes out."""

        def copy(value: Any) -> Any:
            if not isinstance(value, RemoteTensor):
                return value
            with torch.no_grad():
                return wrap(value._allocation, value._layout, value._offset).clone()

        copied: R = trees.tree_map(copy, result)
        return copied

    def _drop(self, key: Any) -> None:
        variant, session = self._variants.pop(key), self._session
        if session is not None and variant.number >= 0:
            session.drop_recording(variant.number, variant.own)

    def reset(self) -> None:
        """Forget all recordings, for instance after something changed that can't be seen from outside."""
        for key in list(self._variants):
            self._drop(key)


def _key(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.stride(), value.requires_grad)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return (type(value), value)


def _key_of_object(item: object) -> object:
    if isinstance(item, torch.optim.Optimizer):
        return tuple(
            (name, value if isinstance(value, (bool, int, float, str, type(None), tuple)) else None)
            for group in item.param_groups
            for name, value in group.items()
            if name != "params"
        )
    if isinstance(item, torch.nn.Module):
        return tuple(module.training for module in item.modules())
    return None


def _seen_by(step: Any) -> list[object]:
    """Modules and optimizers that a function refers to: in its closure, as its object, by name in its module."""
    found: list[object] = []
    function = getattr(step, "__func__", step)
    candidates: list[object] = [step, getattr(step, "__self__", None)]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            candidates.append(cell.cell_contents)
        except ValueError:
            continue
    code = getattr(function, "__code__", None)
    if code is not None:
        names = getattr(function, "__globals__", {})
        candidates += [names[name] for name in code.co_names if name in names]
    owner = getattr(step, "__self__", None)
    candidates += list(getattr(owner, "__dict__", {}).values())
    for item in candidates:
        if isinstance(item, (torch.nn.Module, torch.optim.Optimizer)) and not any(item is other for other in found):
            found.append(item)
    return found
