"""Templates made into something that runs: one operator of the packed stream, found by its number.

What can be checked once is checked when a template is defined or first run: that the operator may be named, that
layouts are sound, that results lie as the client predicted. What depends on the stream is checked each time: handles,
and that a view stays within its allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aliquot.remote.core import messages
from aliquot.remote.core.bounds import ARGUMENTS_MAX
from aliquot.remote.core.recording import shape_of
from aliquot.remote.core.words import words_float, words_int
from aliquot.remote.operators import find, is_random
from aliquot.remote.server.randomness import Generator
from aliquot.remote.server.store import Layout, MispredictedError, Store, as_predicted, make_predicted

_NAMED: dict[str, dict[str, object]] = {
    "dtype": {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    "layout": {"strided": torch.strided},
    "memory_format": {
        "contiguous_format": torch.contiguous_format,
        "preserve_format": torch.preserve_format,
        "channels_last": torch.channels_last,
        "channels_last_3d": torch.channels_last_3d,
    },
}

_SHAPED_BY_NUMBERS = ("aten::arange", "aten::range")

_UNFORESEEN_BYTES = 1 << 20
"""Of results that a kernel makes and the meta kernel doesn't, or the other way round: masks, states of generators."""

_TENSOR, _FLOAT, _INT, _FIXED = range(4)


_Mend = Callable[[torch.Tensor, Layout], torch.Tensor]


class TemplateError(ValueError):
    """A definition that can't be run."""


def constant(arg: object, device: torch.device) -> object:
    """The value of an argument that is the same each time.

    Raises:
        TemplateError: it is none of that kind, or names what there is not.
    """
    match arg:
        case messages.ConstArg(value):
            return value
        case messages.NumbersArg(values):
            return values
        case messages.ComplexArg(real, imaginary):
            return complex(real, imaginary)
        case messages.DeviceArg():
            return device
        case messages.NamedArg(kind, name):
            try:
                return _NAMED[kind][name]
            except KeyError:
                raise TemplateError(f"there is no {kind[:40]!r} named {name[:40]!r}") from None
        case _:
            raise TemplateError("an argument of this kind is no constant")


class Refusal:
    """A template that can't be run. Its record is as wide as it would be, so that what stands behind it is found."""

    __slots__ = ("_error", "operator", "width")

    def __init__(self, template: messages.Template, error: Exception) -> None:
        self.operator = template.operator
        self.width = shape_of(template).width
        self._error = error

    def run(self, *_: object) -> None:
        """Say why. Raises that."""
        raise self._error.with_traceback(None)


class Executable:
    """One template, ready to run."""

    __slots__ = (
        "_checked", "_function", "_mended", "_parts", "_places", "_plain", "_random", "_varies", "need_bytes",
        "operator", "results", "width",
    )  # fmt: skip

    def __init__(
        self,
        template: messages.Template,
        store: Store,
        device: torch.device,
        function: Callable[..., Any] | None = None,
    ) -> None:
        """Check a definition and prepare it.

        Raises:
            TemplateError, LayoutError, NotAllowed: it can't be run.
        """
        self.operator = template.operator
        self._function = function or find(template.operator)
        self._random = is_random(template.operator, self._function)
        # Each part is what stands in the stream, or a constant; each place puts one part or a run of them into a call.
        self._parts: list[tuple[int, Any, bool]] = []
        self._places: list[tuple[int | str, int, int]] = []
        self.width = shape_of(template).width
        for position, arg in enumerate(template.args):
            self._add(position, arg, store, device)
        self._plain = not template.kwargs and all(end < 0 for _, _, end in self._places)
        for name, arg in template.kwargs.items():
            self._add(name, arg, store, device)
        if len(self._parts) > ARGUMENTS_MAX or len(template.results) > ARGUMENTS_MAX:
            raise TemplateError(f"more than {ARGUMENTS_MAX} arguments or results")
        self.results: list[Layout | None] = [
            None if result is None else store.layouts.of(result.dtype, result.shape, result.stride)
            for result in template.results
        ]
        self.need_bytes = sum(layout.extent_bytes for layout in self.results if layout is not None)
        self._checked = False
        # Where sizes come from numbers of the stream, each run is foreseen.
        self._varies = template.operator.startswith(_SHAPED_BY_NUMBERS)
        self._mended: list[_Mend | None] = [None] * len(self.results)

    def _add(self, place: int | str, arg: messages.Arg, store: Store, device: torch.device) -> None:
        start = len(self._parts)
        if isinstance(arg, messages.ListArg):
            for item in arg.items:
                self._part(item, store, device)
            self._places.append((place, start, len(self._parts)))
        else:
            self._part(arg, store, device)
            self._places.append((place, start, -1))

    def _part(self, arg: messages.Arg, store: Store, device: torch.device) -> None:
        match arg:
            case messages.TensorArg(dtype, shape, stride, shifted):
                self._parts.append((_TENSOR, store.layouts.of(dtype, shape, stride), shifted))
            case messages.FloatArg():
                self._parts.append((_FLOAT, None, False))
            case messages.IntArg():
                self._parts.append((_INT, None, False))
            case _:
                self._parts.append((_FIXED, constant(arg, device), False))

    def _values(self, words: Sequence[int], at: int, store: Store) -> list[Any]:
        allocations = store.allocations
        values: list[Any] = []
        for kind, payload, shifted in self._parts:
            if kind == _TENSOR:
                handle = words[at]
                allocation = allocations.get(handle)
                if allocation is None:
                    allocation = store.get(handle)
                at += 1
                if shifted:
                    values.append(allocation.view(payload, words_int(words, at)))
                    at += 4
                elif allocation.layout is payload:
                    values.append(allocation.tensor)
                else:
                    values.append(allocation.view(payload, 0))
            elif kind == _FIXED:
                values.append(payload)
            elif kind == _FLOAT:
                values.append(words_float(words, at))
                at += 4
            else:
                values.append(words_int(words, at))
                at += 4
        return values

    def _foresee(self, words: Sequence[int], at: int, store: Store) -> None:
        """Check that what the operator will make is what its results are said to be, before it makes it.

        Raises:
            MispredictedError: it would make more.
        """
        made_bytes = self.foreseen_bytes(words, at + 2, store)
        if made_bytes > max(self.need_bytes, _UNFORESEEN_BYTES):
            raise MispredictedError(f"{made_bytes} bytes would be made, {self.need_bytes} were expected")

    def foreseen_bytes(self, words: Sequence[int], at: int, store: Store) -> int:
        """Bytes of the new tensors that a call would make, as far as they can be told without making them."""
        known: set[int] = set()

        def on_meta(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                known.add(value.untyped_storage()._cdata)
            return torch.device("meta") if isinstance(value, torch.device) else value

        args, kwargs = self._arguments([on_meta(value) for value in self._values(words, at, store)])
        try:
            returned = self._function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - no meta kernel, or an error that the real one will tell
            return 0
        made_bytes = 0
        for item in returned if isinstance(returned, (tuple, list)) else (returned,):
            for tensor in item if isinstance(item, (tuple, list)) else (item,):
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in known:
                    made_bytes += tensor.untyped_storage().nbytes()
        return made_bytes

    def call(self, words: Sequence[int], at: int, store: Store, generator: Generator) -> Any:
        """Run it on what stands in the stream; its arguments begin at `at`. Returns what the operator returned."""
        values = self._values(words, at, store)
        args, kwargs = (values, {}) if self._plain else self._arguments(values)
        if self._random:
            with generator:
                return self._function(*args, **kwargs)
        return self._function(*args, **kwargs)

    def _arguments(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for place, start, end in self._places:
            value = values[start] if end < 0 else values[start:end]
            if isinstance(place, str):
                kwargs[place] = value
            else:
                args.append(value)
        return args, kwargs

    def run(self, words: Sequence[int], at: int, store: Store, generator: Generator) -> None:
        """Run it, its record beginning at `at`, and hold its results.

        Raises:
            OutOfMemory: the results would pass the limit; nothing was run.
            HandleError, LayoutError, and what PyTorch raises.
        """
        store.account.require(self.need_bytes)
        results = self.results
        made = at + self.width
        for layout in reversed(results):
            if layout is not None:
                made -= 1
                store.check_free(words[made])
        if not self._checked or self._varies:
            self._foresee(words, at, store)
        returned = self.call(words, at + 2, store, generator)
        if not results:
            self._checked = True
            return
        if not isinstance(returned, (tuple, list)):
            returned = (returned,)
        elif any(isinstance(item, list) for item in returned):
            returned = [tensor for item in returned for tensor in (item if isinstance(item, list) else (item,))]
        if len(returned) < len(results):
            raise TemplateError(f"{len(results)} results were expected, {len(returned)} were made")
        for index, layout in enumerate(results):
            if layout is None:
                continue
            tensor = returned[index]
            if not self._checked:
                self._mended[index] = self._mend(tensor, layout, returned, index, words, at, store)
            mend = self._mended[index]
            if mend is not None:
                tensor = mend(tensor, layout)
            store.put(words[made], tensor, layout)
            made += 1
        self._checked = True

    def _mend(  # noqa: PLR0917
        self,
        tensor: object,
        layout: Layout,
        returned: Sequence[Any],
        index: int,
        words: Sequence[int],
        at: int,
        store: Store,
    ) -> _Mend | None:
        """What makes a result what the client believes it to be: its own, and lying as predicted."""
        if not isinstance(tensor, torch.Tensor):
            raise TemplateError(f"a tensor was expected, {type(tensor).__name__} was made")
        if not as_predicted(tensor, layout):
            return make_predicted
        # Kernels choose by strides, those of single elements too: whether images have their channels last.
        mend = None if tensor.stride() == layout.stride else _restrided
        if not layout.extent_bytes:
            return mend
        place = tensor.untyped_storage().data_ptr()
        others = [other for number, other in enumerate(returned) if number != index]
        others += self._values(words, at + 2, store)
        if any(isinstance(other, torch.Tensor) and other.untyped_storage().data_ptr() == place for other in others):
            return make_predicted
        return mend


def _restrided(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    return tensor.as_strided(layout.shape, layout.stride)
