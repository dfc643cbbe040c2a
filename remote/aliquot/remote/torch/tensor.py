"""The tensor whose elements are elsewhere, and what happens when an operator is called on it.

This is the path that every operator takes, so it is written for speed: a call is looked up by what it is called with,
and where it was seen before, its template's number and the handles are all that is put down.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aliquot.remote.core.layouts import extent
from aliquot.remote.core.words import FREE, float_words, int_words
from aliquot.remote.torch.saving import deep_copy, describe, reduce
from aliquot.remote.torch.session import Session, naming

_make = torch.Tensor._make_wrapper_subclass
_getframe = sys._getframe
_strided = torch.strided


class Layout:
    """Session, type, sizes and strides of tensors; one object for each, compared by identity."""

    __slots__ = ("dtype", "extent_bytes", "name", "session", "shape", "shifted", "stride")

    def __init__(self, session: Session, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.session = session
        self.dtype = dtype
        self.shape = shape
        self.stride = stride
        self.name = str(dtype).removeprefix("torch.")
        self.extent_bytes = extent(shape, stride) * dtype.itemsize
        self.shifted = object()
        """Stands for this layout in a key where the tensor does not begin with its allocation."""


class Allocation:
    """Memory on the server. It is let go when no tensor has it any more."""

    __slots__ = ("__weakref__", "_address", "handle", "session", "size_bytes")

    def __init__(self, session: Session, handle: int, size_bytes: int) -> None:
        self.session = session
        self.handle = handle
        self.size_bytes = size_bytes
        session.live_bytes += size_bytes

    @property
    def address(self) -> int:
        """A number that no other allocation has or had, as far from theirs as it is large. Nothing is there: it says
        which tensors share memory, to those who compare addresses.
        """
        try:
            return self._address
        except AttributeError:
            self._address: int = _addresses.take(self.size_bytes)
            return self._address

    def __del__(self) -> None:
        session, handle = self.session, self.handle
        session.live_bytes -= self.size_bytes
        # The order matters: whoever takes the handle next puts it down behind this.
        session.pending.extend((FREE, handle))
        session.free_handles.append(handle)


class _Addresses:
    """Numbers where no process has memory: above what a processor's addresses can be."""

    def __init__(self) -> None:
        self._next = 1 << 60

    def take(self, size_bytes: int) -> int:
        taken, self._next = self._next, self._next + (size_bytes + 512) // 512 * 512
        return taken


_addresses = _Addresses()


class Storage:
    """What a tensor says of its memory, to those who compare storages or add up their sizes."""

    __slots__ = ("__weakref__", "_allocation", "device")

    def __init__(self, allocation: Allocation, device: torch.device) -> None:
        self._allocation = allocation
        self.device = device

    def data_ptr(self) -> int:
        """Tells storages apart; nothing is at this address (`Allocation.address`)."""
        return self._allocation.address

    @property
    def _cdata(self) -> int:
        return self._allocation.address

    def nbytes(self) -> int:
        """Its size in bytes."""
        return self._allocation.size_bytes

    size = __len__ = nbytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and other._allocation is self._allocation

    def __hash__(self) -> int:
        return hash(self._allocation.address)


class Entry:
    """What is known of calls that look alike."""

    __slots__ = ("build", "layout", "layouts", "number", "run")

    def __init__(self) -> None:
        self.number = 0
        self.layout: Layout | None = None
        """Of the one new tensor; None where it is not exactly one."""
        self.layouts: list[Layout] = []
        """Of all new tensors."""
        self.build: Callable[[list[RemoteTensor], Sequence[Any], dict[str, Any]], Any] | None = None
        """Makes what is returned from the new tensors and the arguments."""
        self.run: Callable[[Sequence[Any], dict[str, Any]], Any] | None = None
        """Where nothing is issued, or not like this: views, and what must be asked for."""


class RemoteTensor(torch.Tensor):
    """A tensor of a remote device: an allocation there, and how this tensor lies in it."""

    _allocation: Allocation
    _layout: Layout
    _offset: int

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __torch_dispatch__(  # type: ignore[override]
        func: Any,
        types: object,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        special = SPECIAL.get(func)
        if special is not None:
            return special(func, args, kwargs or {})
        return issue(None, func, args, kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return describe(self)

    def __reduce_ex__(self, protocol: object) -> Any:
        return reduce(self, protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deep_copy(self, memo)

    def __coerce_same_metadata_as_tangent__(self, metadata: object, expected: type | None = None) -> Any:
        """A gradient for a compiled function, which takes our tensors for plain ones: as it is."""
        return self if metadata is None and expected is torch.Tensor else None

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else format(repr(self), spec)

    def tolist(self) -> Any:
        """The elements, fetched."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """As with other devices, only where forced."""
        if not force:
            raise TypeError(f"can't convert a tensor of {self.device} to NumPy: copy it to the CPU by .cpu() first")
        return self.detach().cpu().numpy()

    def data_ptr(self) -> int:
        """Where it begins among the addresses of remote memory, at which nothing is in this process."""
        return self._allocation.address + self._offset * self._layout.dtype.itemsize

    def untyped_storage(self) -> Any:
        """Which memory it lies in: a `Storage`."""
        # The compiler keeps what it asks for, and compares none of it.
        return super().untyped_storage() if naming.get() else Storage(self._allocation, self.device)

    def record_stream(self, stream: object) -> None:
        """Nothing to do: the server does one operator after another."""


SPECIAL: dict[Any, Callable[[Any, Sequence[Any], dict[str, Any]], Any]] = {}
"""Operators that are not simply issued. Their functions are given the operator and its arguments."""


def miss(session: Session | None, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Issue a call that was not seen before. `prediction.py` puts the real one here."""
    raise NotImplementedError(func)


TRUE, FALSE = object(), object()
SCALARS: dict[Any, frozenset[int | str]] = {}
"""Of each operator that was issued: places whose whole numbers are values and not part of the template."""

_NOWHERE: frozenset[int | str] = frozenset()


def wrap(allocation: Allocation, layout: Layout, offset: int) -> RemoteTensor:
    """A tensor over an allocation."""
    tensor: RemoteTensor = _make(
        RemoteTensor, layout.shape, layout.stride, offset, None, layout.dtype, _strided, layout.session.device
    )
    tensor._allocation = allocation
    tensor._layout = layout
    tensor._offset = offset
    return tensor


class Unkeyed(Exception):
    """An argument that has no place in a template: a tensor of another device, a generator."""


def _add(value: Any, place: int | str, func: Any, key: list[Any], words: list[int]) -> None:  # noqa: PLR0912
    """Put an argument other than a plain tensor into a key, and what varies of it into words."""
    kind = type(value)
    if kind is RemoteTensor:
        words.append(value._allocation.handle)
        if value._offset:
            key.append(value._layout.shifted)
            words.extend(int_words(value._offset))
        else:
            key.append(value._layout)
    elif value is None:
        key.append(None)
    elif kind is bool:
        key.append(TRUE if value else FALSE)
    elif kind is float:
        if place in SCALARS.get(func, _NOWHERE):
            key.append(float)
            words.extend(float_words(value))
        else:
            key.append((float, value.hex()))
    elif kind is int:
        if place in SCALARS.get(func, _NOWHERE) and -(1 << 63) <= value < 1 << 63:
            key.append(int)
            words.extend(int_words(value))
        else:
            key.append(value)
    elif kind is list or kind is tuple:
        key.append((list, len(value)))
        for item in value:
            if type(item) is RemoteTensor and not item._offset:
                # Without a call: optimizers have lists of hundreds.
                words.append(item._allocation.handle)
                key.append(item._layout)
            else:
                _add(item, place, func, key, words)
    elif isinstance(value, torch.Tensor | torch.Generator):
        raise Unkeyed
    elif kind is complex:
        key.append((complex, value.real.hex(), value.imag.hex()))
    else:
        key.append(value)


def issue(  # noqa: C901, PLR0912 - the path of every operator
    session: Session | None, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None
) -> Any:
    """Call an operator on the server; returns tensors that will be there."""
    key: list[Any] = [func]
    words: list[int] = [0, 0]
    place = 0
    try:
        for value in args:
            if type(value) is RemoteTensor:
                layout = value._layout
                if session is None:
                    session = layout.session
                words.append(value._allocation.handle)
                if value._offset:
                    key.append(layout.shifted)
                    words.extend(int_words(value._offset))
                else:
                    key.append(layout)
            else:
                _add(value, place, func, key, words)
            place += 1
        if kwargs:
            for name, value in kwargs.items():
                key.append(name)
                _add(value, name, func, key, words)
    except Unkeyed:
        return miss(session, func, args, kwargs or {})
    if session is None:
        session = _session_in(args, kwargs)
        if session is None:
            return miss(session, func, args, kwargs or {})
    entry = session.entries.get(tuple(key))
    if entry is None:
        return miss(session, func, args, kwargs or {})
    if entry.run is not None:
        return entry.run(args, kwargs or {})
    words[0] = entry.number
    words[1] = session.site(_getframe(1).f_back)
    session.counters.operators += 1
    layout = entry.layout
    if layout is not None:
        handle = session.new_handle()
        tensor: RemoteTensor = _make(
            RemoteTensor, layout.shape, layout.stride, 0, None, layout.dtype, _strided, session.device
        )
        tensor._allocation = Allocation(session, handle, layout.extent_bytes)
        tensor._layout = layout
        tensor._offset = 0
        words.append(handle)
        if session.recording is not None:
            session.made.append(weakref.ref(tensor._allocation))
        pending = session.pending
        pending.extend(words)
        if len(pending) > session.threshold:
            session.flush()
        if session.live_bytes > session.limit_bytes:
            session.overfull()
        return tensor
    assert entry.build is not None
    return entry.build(put(session, words, entry.layouts), args, kwargs or {})


def put(session: Session, words: list[int], layouts: Sequence[Layout]) -> list[RemoteTensor]:
    """Put a call into the stream, and behind its words the handles of what it makes; returns that."""
    made: list[RemoteTensor] = []
    for layout in layouts:
        handle = session.new_handle()
        allocation = Allocation(session, handle, layout.extent_bytes)
        if session.recording is not None:
            session.made.append(weakref.ref(allocation))
        made.append(wrap(allocation, layout, 0))
        words.append(handle)
    session.pending.extend(words)
    if len(session.pending) > session.threshold:
        session.flush()
    if session.live_bytes > session.limit_bytes:
        session.overfull()
    return made


def _session_in(args: Sequence[Any], kwargs: dict[str, Any] | None) -> Session | None:
    """The session of the first remote tensor anywhere in the arguments."""
    for value in (*args, *(kwargs or {}).values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if type(item) is RemoteTensor:
                return item._layout.session
    return None
