"""Files of tensors on `cuda`, as a GPU's are: their storages say `cuda:0`, and come to where they say, or are sent.

PyTorch saves and loads storages and makes tensors of them; ours have none. So elements are saved from a storage of the
CPU that is called by the device's name, and a storage that is meant for a device carries a mark until a tensor is made
of it.
"""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch._utils

from aliquot.remote.compat.lease import devices
from aliquot.remote.torch.tensor import RemoteTensor

_FIRST = 5
"""PyTorch names and restores storages of the CPU at 10, of `cuda` at 20; lower numbers are asked first."""
_plain_rebuild: Any = torch._utils._rebuild_tensor
_plain_reduce = RemoteTensor.__reduce_ex__


def install() -> None:
    """Put it in place, once a process."""
    torch.serialization.register_package(_FIRST, _name, _restore)
    torch._utils._rebuild_tensor = _rebuild
    torch.UntypedStorage.cuda = _wanted  # type: ignore[assignment, method-assign]
    RemoteTensor.__reduce_ex__ = _reduce  # type: ignore[assignment, method-assign]
    ForkingPickler.register(RemoteTensor, _to_other_process)


def _reduce(tensor: RemoteTensor, protocol: Any) -> Any:
    """As a tensor of the CPU whose storage is called by the device that this one is on."""
    reduced = _plain_reduce(tensor, protocol)
    storage = reduced[1][0]
    while not isinstance(storage, torch.storage.TypedStorage):  # of a parameter: the tensor's, within
        storage = storage.__reduce_ex__(protocol)[1][0]
    untyped: Any = storage._untyped_storage
    untyped.stands_for = str(tensor.device)
    return reduced


def _name(storage: Any) -> str | None:
    return getattr(storage, "stands_for", None)


def _restore(storage: Any, location: str) -> Any:
    return _wanted(storage, location) if location.startswith("cuda") else None


def _wanted(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:  # noqa: FBT001
    """The same storage, of which tensors will be made on a device."""
    del non_blocking
    storage.wanted_on = torch.device("cuda", devices.index(device))
    return storage


def _rebuild(storage: Any, offset: int, size: Any, stride: Any) -> Any:
    """A tensor of a storage. Those of one storage share it on the device as well."""
    untyped = storage._untyped_storage
    device = getattr(untyped, "wanted_on", None)
    if device is None:
        return _plain_rebuild(storage, offset, size, stride)
    whole = getattr(untyped, "there", None)
    if whole is None or whole.dtype != storage.dtype:
        count = untyped.nbytes() // storage.dtype.itemsize
        whole = untyped.there = _plain_rebuild(storage, 0, (count,), (1,)).to(device)
    return whole.as_strided(size, stride, offset).data


def _to_other_process(tensor: RemoteTensor) -> Any:
    """By value, so that the sender may end; the other process has it on the device of the same number."""
    file = io.BytesIO()
    torch.save(tensor, file)
    return _arrived, (file.getvalue(),)


def _arrived(file: bytes) -> torch.Tensor:
    arrived: torch.Tensor = torch.load(io.BytesIO(file), weights_only=True)
    return arrived
