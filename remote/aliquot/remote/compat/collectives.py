"""What programs call with several processes or devices: collectives by gloo, and the copies of `nn.DataParallel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as trees

from aliquot.remote.torch.tensor import RemoteTensor


def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A collective of `torch.distributed`, on copies of what it is given; what it wrote goes back."""
    copies: dict[int, tuple[torch.Tensor, RemoteTensor]] = {}

    def here(tensor: RemoteTensor) -> torch.Tensor:
        copied = tensor.detach().cpu()
        copies[id(copied)] = copied, tensor
        return copied

    def there(tensor: torch.Tensor) -> torch.Tensor:
        found = copies.get(id(tensor))
        return tensor if found is None else found[1]

    args, kwargs = trees.tree_map_only(RemoteTensor, here, (list(args), kwargs))
    returned = func(*args, **kwargs)
    values = returned if isinstance(returned, tuple) else (returned,)
    work = next((value for value in values if hasattr(value, "wait")), None)
    if work is not None:
        work.wait()
    with torch.no_grad():
        for copied, tensor in copies.values():
            tensor.copy_(copied)
    return trees.tree_map_only(torch.Tensor, there, returned)


def install() -> None:
    """Give `nn.DataParallel` what builds for CUDA have compiled."""
    module: Any = torch._C
    module._scatter, module._broadcast, module._broadcast_coalesced = _scatter, _broadcast, _broadcast_coalesced
    module._gather = _gather
    torch.nn.parallel._functions._get_stream = lambda device: torch.cuda.Stream(device.index)


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Sequence[int] | None = None, dim: int = 0, streams: Any = None
) -> tuple[torch.Tensor, ...]:
    del streams
    parts = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(devices), dim)
    return tuple(part.cuda(device) for part, device in zip(parts, devices, strict=False))


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.cuda(device) for device in devices)


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int = 0
) -> list[list[torch.Tensor]]:
    del buffer_size
    return [[tensor.cuda(device) for tensor in tensors] for device in devices]


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
    device = torch.device("cpu") if destination == -1 else torch.device("cuda", destination or 0)
    return torch.cat([tensor.to(device) for tensor in tensors], dim)
