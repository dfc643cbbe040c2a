"""Allocations by handle, and views of them: never past an allocation's end, never past the session's limit."""

from __future__ import annotations

import ctypes
import weakref

import torch

from aliquot.remote.core.accounting import Account, Budget
from aliquot.remote.core.bounds import HANDLES_MAX
from aliquot.remote.core.layouts import LayoutError, extent, item_bytes

_VIEWS_KEPT = 16


class MispredictedError(ValueError):
    """An operator made other sizes or another type than its client had predicted."""


class HandleError(ValueError):
    """A handle that names nothing, or names something that lives already."""


class Layout:
    """Type, sizes and strides; one object for each that is in use, so that layouts are compared by identity."""

    __slots__ = ("__weakref__", "dtype", "extent_bytes", "item_bytes", "shape", "stride", "torch_dtype")

    def __init__(self, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.item_bytes = item_bytes(dtype)
        self.extent_bytes = extent(shape, stride) * self.item_bytes
        self.dtype = dtype
        self.shape = shape
        self.stride = stride
        self.torch_dtype: torch.dtype = getattr(torch, dtype)


class Layouts:
    """The layouts in use."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[tuple[str, tuple[int, ...], tuple[int, ...]], Layout]
        self._known = weakref.WeakValueDictionary()

    def of(self, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> Layout:
        """The layout of these.

        Raises:
            LayoutError: no tensor may have it.
        """
        key = (dtype, shape, stride)
        layout = self._known.get(key)
        if layout is None:
            layout = self._known[key] = Layout(dtype, shape, stride)
        return layout

    def of_tensor(self, tensor: torch.Tensor) -> Layout:
        """The layout that a tensor has."""
        return self.of(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())


class Allocation:
    """Device memory that is charged to the session, as the tensor that it was made as."""

    __slots__ = ("layout", "number_bytes", "tensor", "views")

    def __init__(self, tensor: torch.Tensor, layout: Layout) -> None:
        self.tensor = tensor
        self.layout = layout
        self.number_bytes = layout.extent_bytes
        self.views: dict[tuple[Layout, int], torch.Tensor] = {}

    def view(self, layout: Layout, offset: int) -> torch.Tensor:
        """A view of a layout, `offset` elements of its type behind the beginning.

        Raises:
            LayoutError: it would reach past the allocation's end.
        """
        key = (layout, offset)
        view = self.views.get(key)
        if view is None:
            end_bytes = offset * layout.item_bytes + layout.extent_bytes
            if offset < 0 or end_bytes > self.number_bytes:
                raise LayoutError(
                    f"a view of {layout.dtype}{list(layout.shape)} from element {offset} on ends at byte {end_bytes}, "
                    f"its allocation at {self.number_bytes}"
                )
            if layout.torch_dtype is self.tensor.dtype:
                view = torch.as_strided(self.tensor, layout.shape, layout.stride, offset)
            else:
                view = torch.empty(0, dtype=layout.torch_dtype, device=self.tensor.device)
                view.set_(self.tensor.untyped_storage(), offset, layout.shape, layout.stride)
            if len(self.views) >= _VIEWS_KEPT:
                self.views.pop(next(iter(self.views)))
            self.views[key] = view
        return view

    def write(self, offset_bytes: int, data: memoryview) -> None:
        """Bytes from the client.

        Raises:
            LayoutError: they would reach past the allocation's end.
        """
        if offset_bytes + len(data) > self.number_bytes:
            raise LayoutError(
                f"{len(data)} bytes at {offset_bytes} don't fit an allocation of {self.number_bytes} bytes"
            )
        if not len(data):
            return
        if self.tensor.device.type == "cpu":
            ctypes.memmove(self.tensor.untyped_storage().data_ptr() + offset_bytes, bytes(data), len(data))
        else:
            whole = torch.empty(0, dtype=torch.uint8, device=self.tensor.device)
            whole.set_(self.tensor.untyped_storage(), 0, (self.number_bytes,), (1,))
            whole[offset_bytes : offset_bytes + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)


class Store:
    """What a session holds."""

    __slots__ = ("account", "allocations", "layouts")

    def __init__(self, budget: Budget | int) -> None:
        self.account = Account(budget)
        self.allocations: dict[int, Allocation] = {}
        self.layouts = Layouts()

    def get(self, handle: int) -> Allocation:
        """The allocation of a handle.

        Raises:
            HandleError: there is none.
        """
        try:
            return self.allocations[handle]
        except KeyError:
            raise HandleError(
                "a tensor is used that was never made: the operator that makes it was dropped after an earlier error"
            ) from None

    def check_free(self, handle: int) -> None:
        """Raise HandleError unless a new allocation may have this handle."""
        if handle in self.allocations or not 0 <= handle < HANDLES_MAX:
            raise HandleError(f"handle {handle} can't be given to a new allocation")

    def put(self, handle: int, tensor: torch.Tensor, layout: Layout) -> None:
        """Hold a tensor that nobody else has, of exactly this layout, and charge it.

        Raises:
            OutOfMemory: it would pass the limit.
        """
        self.account.charge(layout.extent_bytes)
        self.allocations[handle] = Allocation(tensor, layout)

    def free(self, handle: int) -> None:
        """Let an allocation go. One that was never made is none of our business."""
        allocation = self.allocations.pop(handle, None)
        if allocation is not None:
            self.account.refund(allocation.number_bytes)

    def clear(self) -> None:
        """Let everything go."""
        for handle in list(self.allocations):
            self.free(handle)


def lies_as(tensor: torch.Tensor, layout: Layout) -> bool:
    """Whether its elements lie as in a layout of its shape: strides where there is one element alone don't count."""
    steps = zip(layout.shape, layout.stride, tensor.stride(), strict=True)
    return all(step == other or size <= 1 for size, step, other in steps)


def as_predicted(tensor: torch.Tensor, layout: Layout) -> bool:
    """Whether a result is what the client believes it to be, alone in a storage of exactly its size."""
    return (
        tuple(tensor.shape) == layout.shape
        and lies_as(tensor, layout)
        and tensor.dtype is layout.torch_dtype
        and tensor.storage_offset() == 0
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.untyped_storage().nbytes() == layout.extent_bytes
    )


def make_predicted(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The same values, lying as the client believes.

    Raises:
        MispredictedError: sizes or type differ, so that they can't.
    """
    if tuple(tensor.shape) != layout.shape or tensor.dtype is not layout.torch_dtype:
        raise MispredictedError(
            f"{layout.dtype}{list(layout.shape)} was expected, {tensor.dtype}{list(tensor.shape)} was made"
        )
    made = torch.empty_strided(layout.shape, layout.stride, dtype=layout.torch_dtype, device=tensor.device)
    return made.copy_(tensor)
