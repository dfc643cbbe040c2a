"""What `torch.cuda` says and does where `cuda` is a lease: the part of its interface that means something there.

Whatever else `torch.cuda` offers refuses by its name.
"""

from __future__ import annotations

import contextlib
import types
from dataclasses import dataclass
from typing import Any, Self

import torch

from aliquot.remote.compat.errors import refusing, refusing_class
from aliquot.remote.compat.lease import devices, random_seed
from aliquot.remote.core import messages
from aliquot.remote.errors import NotOnRemoteError
from aliquot.remote.native import LIBRARY
from aliquot.remote.torch import backend

_CAPABILITIES = {
    "B200": (10, 0), "B100": (10, 0), "H200": (9, 0), "H100": (9, 0), "L40": (8, 9), "L4": (8, 9), "A100": (8, 0),
    "A30": (8, 0), "A40": (8, 6), "A10": (8, 6), "A16": (8, 6), "T4": (7, 5), "V100": (7, 0),
}  # fmt: skip
"""Compute capability by model; NVIDIA's table of CUDA GPUs."""
_CAPABILITY_UNKNOWN = (8, 0)


@dataclass(frozen=True, slots=True)
class Properties:
    """Of a part: its memory is the part's, not the device's."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    warp_size: int = 32
    is_integrated: bool = False
    is_multi_gpu_board: bool = False
    uuid: str = ""
    """The lease's slice: a part has no number of the card's."""


class Event(backend.Event):
    """Behind what was issued until it was recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:  # noqa: FBT001
        del blocking
        if interprocess:
            raise NotOnRemoteError("an event between processes")
        super().__init__(enable_timing)

    def record(self, stream: backend.Stream | None = None) -> None:
        """Put it behind what was issued until now."""
        devices.connect()
        super().record(stream)


class Stream(backend.Stream):
    """Work is done in the order of its issue: every stream is the one that there is."""

    def __init__(self, device: Any = None, priority: int = 0, **_: object) -> None:
        del priority
        self.device = torch.device("cuda", devices.session(device).index)
        self.stream_id = self.cuda_stream = 0

    def record_event(self, event: backend.Event | None = None) -> Event:
        """An event at this place."""
        event = event or Event()
        event.record(self)
        return event  # type: ignore[return-value]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)


class StreamContext(contextlib.nullcontext[Any]):
    """Has no effect: there is one stream. A class, as the compiler asks what is one of these."""


class Device:
    """`torch.cuda.device`: makes one the current device for a while."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None or (isinstance(device, int) and device < 0) else devices.index(device)
        self.prev_idx = -1

    def __enter__(self) -> Self:
        self.prev_idx = devices.choose(self.idx)
        return self

    def __exit__(self, *_: object) -> None:
        devices.choose(self.prev_idx)


class DeviceOf(Device):
    """`torch.cuda.device_of`: that of a tensor, if it is on one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else -1)


def _statistics(device: Any) -> dict[str, int]:
    return devices.session(device).statistics()


def _connected(device: Any) -> dict[str, int]:
    """Nothing is held there before the first use, so asking is no use."""
    devices.index(device)
    return _statistics(device) if devices.connected else {"used_bytes": 0, "peak_bytes": 0}


def _reset_peak(device: Any = None) -> None:
    session = devices.session(device)
    request = session.request()
    session.ask(messages.Mark(request, reset_peak=True), request)


def _properties(device: Any = None) -> Properties:
    part = devices.parts()[devices.index(device)]
    major, minor = capability(part.device_model)
    # As many multiprocessors as the part's share of a hundred: what scripts do with the number is divide work by it.
    processors = max(1, part.share_milli // 10)
    return Properties(part.device_model, part.memory_bytes, major, minor, processors, uuid=part.slice_id)


def capability(model: str) -> tuple[int, int]:
    """Of a model of GPU, by its name."""
    longest = sorted(_CAPABILITIES, key=len, reverse=True)
    return next((_CAPABILITIES[each] for each in longest if each in model.upper()), _CAPABILITY_UNKNOWN)


def _capability(device: Any = None) -> tuple[int, int]:
    about = _properties(device)
    return about.major, about.minor


def _memory_stats(device: Any = None) -> dict[str, int]:
    numbers = _connected(device)
    held, most = numbers["used_bytes"], numbers["peak_bytes"]
    return {
        f"{kind}.{group}.{which}": value
        for kind in ("allocated_bytes", "active_bytes", "reserved_bytes")
        for group in ("all",)
        for which, value in (("current", held), ("peak", most))
    }


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    limit = devices.parts()[devices.index(device)].memory_bytes
    return limit - _connected(device)["used_bytes"], limit


def _summary(device: Any = None, abbreviated: bool = False) -> str:  # noqa: FBT001
    del abbreviated
    numbers, limit = _connected(device), _mem_get_info(device)[1]
    return (
        f"cuda:{devices.index(device)}: {numbers['used_bytes']} bytes held, at most {numbers['peak_bytes']}, of {limit}"
    )


def _state(device: Any = "cuda") -> torch.Tensor:
    return backend.module.get_rng_state(device)


def _set_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    backend.module.set_rng_state(new_state.cpu(), device)


def _seed_one(seed: int) -> None:
    devices.seed(int(seed), every=False)


def _seed_all(seed: int) -> None:
    devices.seed(int(seed))


def _set_states(states: list[torch.Tensor]) -> None:
    for index, state in enumerate(states):
        _set_state(state, index)


def _initial_seed() -> int:
    return devices.session().welcome.seed if devices.chosen_seed is None else devices.chosen_seed


def _nothing(*_: object, **__: object) -> None:
    """For what has no meaning there and no effect on results."""


def _synchronize(device: Any = None) -> None:
    if devices.connected:
        devices.session(device).synchronize()


def _stream(device: Any = None) -> Stream:
    return Stream(device)


PROVIDED: dict[str, Any] = {
    "is_available": lambda: not devices.forked and bool(devices.parts()),
    "is_initialized": lambda: devices.connected,
    "init": devices.connect,
    "_lazy_init": devices.connect,
    "_is_in_bad_fork": lambda: devices.forked,
    "device_count": lambda: len(devices.parts()),
    "current_device": lambda: devices.current,
    "set_device": lambda device: devices.choose(device) and None,
    "_exchange_device": devices.choose,
    "_maybe_exchange_device": lambda device: devices.choose(device),  # noqa: PLW0108 - the compiler wants another one
    "device": Device,
    "device_of": DeviceOf,
    "get_device_name": lambda device=None: _properties(device).name,
    "get_device_properties": _properties,
    "get_device_capability": _capability,
    "get_arch_list": list,
    "get_gencode_flags": str,
    "is_bf16_supported": lambda including_emulation=True: including_emulation or _capability()[0] >= 8,
    "is_tf32_supported": lambda: _capability()[0] >= 8,
    "can_device_access_peer": lambda device, peer: False,
    "memory_allocated": lambda device=None: _connected(device)["used_bytes"],
    "max_memory_allocated": lambda device=None: _connected(device)["peak_bytes"],
    "memory_reserved": lambda device=None: _connected(device)["used_bytes"],
    "max_memory_reserved": lambda device=None: _connected(device)["peak_bytes"],
    "memory_cached": lambda device=None: _connected(device)["used_bytes"],
    "max_memory_cached": lambda device=None: _connected(device)["peak_bytes"],
    "memory_stats": _memory_stats,
    "memory_summary": _summary,
    "mem_get_info": _mem_get_info,
    "reset_peak_memory_stats": _reset_peak,
    "reset_max_memory_allocated": _reset_peak,
    "reset_max_memory_cached": _reset_peak,
    "reset_accumulated_memory_stats": _nothing,
    "empty_cache": _nothing,
    "ipc_collect": _nothing,
    "synchronize": _synchronize,
    "Event": Event,
    "Stream": Stream,
    "StreamContext": StreamContext,
    "stream": StreamContext,
    "current_stream": _stream,
    "default_stream": _stream,
    "set_stream": _nothing,
    "is_current_stream_capturing": lambda: False,
    "manual_seed": _seed_one,
    "manual_seed_all": _seed_all,
    "seed": lambda: _seed_one(random_seed()),
    "seed_all": lambda: _seed_all(random_seed()),
    "initial_seed": _initial_seed,
    "get_rng_state": _state,
    "get_rng_state_all": lambda: [_state(index) for index in range(len(devices.parts()))],
    "set_rng_state": _set_state,
    "set_rng_state_all": _set_states,
}
"""By name in `torch.cuda`."""


def _anew(function: Any) -> Any:
    """The same as another function: the compiler knows what it traces by identity, and each by one name."""
    return lambda *args, **kwargs: function(*args, **kwargs)  # noqa: PLW0108 - that is what it is for


_ACCELERATOR: dict[str, Any] = {
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "current_device_index": _anew(PROVIDED["current_device"]),
    "current_device_idx": _anew(PROVIDED["current_device"]),
    "set_device_index": _anew(PROVIDED["set_device"]),
    "set_device_idx": _anew(PROVIDED["set_device"]),
    "device_index": Device,
    "get_memory_info": _anew(_mem_get_info),
    "empty_host_cache": _nothing,
} | {
    name: _anew(PROVIDED[name])
    for name in (
        "is_available", "device_count",
        "synchronize", "current_stream", "set_stream", "empty_cache", "memory_stats", "memory_allocated",
        "memory_reserved", "max_memory_allocated", "max_memory_reserved", "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
    )
}  # fmt: skip
"""By name in `torch.accelerator`, which means whatever device there is."""

_KEPT = frozenset({"CudaError", "DeferredCudaCallError", "cudaStatus", "amp", "has_half", "has_magma", "nvtx"})
"""What may stay as it is, besides modules."""
_BY_NVML = frozenset({"utilization", "device_memory_used"})
"""What may stay where PyTorch finds our NVML, not that of a card of this machine."""
_CAPTURE = "`aliquot.remote.torch.capture(step)` repeats a step by one message"
_INSTEAD = dict.fromkeys(("CUDAGraph", "graph", "make_graphed_callables"), _CAPTURE) | {
    "cudart": "use the calls of torch.cuda"
}


def install() -> None:
    """Put it in place of PyTorch's."""
    module = torch.cuda
    kept = _KEPT | _BY_NVML if LIBRARY.exists() else _KEPT
    for name in module.__all__:
        present = getattr(module, name, None)
        if name in PROVIDED or name in kept or isinstance(present, types.ModuleType) or name.endswith("Storage"):
            continue
        feature, instead = f"torch.cuda.{name}", _INSTEAD.get(name, "")
        if name.endswith("Tensor"):
            dtype = name.removesuffix("Tensor").lower()
            setattr(module, name, refusing_class(feature, f"write torch.tensor(…, dtype=torch.{dtype}, device='cuda')"))
        elif isinstance(present, type):
            setattr(module, name, refusing_class(feature, instead))
        elif callable(present):
            setattr(module, name, refusing(feature, instead))
    for name, value in PROVIDED.items():
        setattr(module, name, value)
    for place in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
        for name, value in PROVIDED.items():
            if hasattr(place, name) and name != "device":
                setattr(place, name, value)
    for name, value in _ACCELERATOR.items():
        setattr(torch.accelerator, name, value)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(torch.cuda.nvtx, name, _nothing)
    torch.backends.cudnn.is_acceptable = lambda _: False
