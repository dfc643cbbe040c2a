"""`torch.autocast("cuda")`: casts on the lease's devices, whose policy is that of `aliquot.remote.torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_OWN = "aliquot"


def install() -> None:
    """Put it in place, once a process."""
    autocast = torch.amp.autocast_mode.autocast
    plain = autocast.__init__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        plain(self, _name(device_type), *args, **kwargs)

    autocast.__init__ = init  # type: ignore[method-assign]
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        setattr(torch, name, _named(getattr(torch, name)))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype(_OWN)
    setattr(torch, "is_autocast_available", lambda device_type: device_type in {"cuda", "cpu", _OWN})  # noqa: B010 - unknown to the types


def _name(device_type: Any) -> Any:
    if device_type is None or device_type is True or device_type is False:
        return device_type
    return _OWN if str(device_type).partition(":")[0] == "cuda" else device_type


def _named(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch's that is given a type of device first, or means `cuda` where it is given none."""
    meant = () if plain.__name__.startswith("set") else (_OWN,)

    def call(*args: Any) -> Any:
        return plain(*((_name(args[0]), *args[1:]) if args else meant))

    return call
