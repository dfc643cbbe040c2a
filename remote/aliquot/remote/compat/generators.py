"""`torch.Generator(device="cuda")`: draws here, and what was drawn goes up.

So a seed gives the same numbers wherever the lease is; they are those of a processor's generator, not of a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aliquot.remote.errors import NotOnRemoteError
from aliquot.remote.torch.tensor import RemoteTensor

_aten = torch.ops.aten
_FILLS = frozenset(
    f"aten::{name}"
    for name in (
        "normal_", "uniform_", "random_", "random_.from", "random_.to", "exponential_", "geometric_", "cauchy_",
        "log_normal_", "bernoulli_.float",
    )
)  # fmt: skip
"""What is there before does not matter to these."""


class Generator(torch._C.Generator):
    """A generator whose numbers are wanted on a device."""

    _wanted: torch.device | None

    def __new__(cls, device: Any = "cpu") -> Any:
        """One of PyTorch's own for the CPU."""
        wanted = torch.device(device)
        if wanted.type == "cpu":
            return torch._C.Generator()
        made = torch._C.Generator.__new__(cls)
        made._wanted = torch.device("cuda", wanted.index or 0) if wanted.type == "cuda" else None
        if made._wanted is None:
            raise NotOnRemoteError(f"torch.Generator(device={str(wanted)!r})", "there are cpu and cuda")
        return made

    def __init__(self, device: Any = "cpu") -> None:
        del device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The one that it was made for."""
        return self._wanted or torch.device("cpu")


class _Kind(type):
    """`isinstance(…, torch.Generator)` holds for those of PyTorch as well."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)

    def __call__(cls, device: Any = "cpu") -> Any:
        return Generator(device)


class PublicGenerator(metaclass=_Kind):
    """What `torch.Generator` is while `cuda` is a lease."""


def find(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call is given a generator."""
    return any(isinstance(value, torch._C.Generator) for value in (*args, *kwargs.values()))


def draw(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator here, on copies of what it is given, and put its results there."""
    fills = func.name() in _FILLS
    moved: list[tuple[RemoteTensor, torch.Tensor]] = []

    def here(value: Any) -> Any:
        if isinstance(value, RemoteTensor):
            copied = torch.empty(value.shape, dtype=value.dtype) if fills else value.detach().cpu()
            moved.append((value, copied))
            return copied
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, (list, tuple)):
            return [here(item) for item in value]
        return value

    device = next((each.device for each in (*args, *kwargs.values()) if isinstance(each, RemoteTensor)), None)
    device = kwargs.get("device") or device or torch.device("cuda")
    with torch.no_grad():
        drawn = func(*[here(value) for value in args], **{name: here(value) for name, value in kwargs.items()})
        for there, copied in moved:
            if copied is drawn:
                there.copy_(copied)
                return there
        return drawn.to(device)


def factory(func: Any) -> Callable[..., Any]:
    """A kernel of an operator that makes a tensor of nothing but a generator's numbers."""
    return lambda *args, **kwargs: draw(
        func, args, {key: value for key, value in kwargs.items() if key != "pin_memory"}
    )


FACTORIES = ("randperm.generator",)
