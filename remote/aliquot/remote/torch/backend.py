"""The device `aliquot` of PyTorch: its module, its guard, its factories."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import torch
from torch.optim.optimizer import _foreach_supported_types
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from aliquot.remote.core import messages
from aliquot.remote.core.channel import Channel
from aliquot.remote.core.layouts import contiguous_stride
from aliquot.remote.errors import NotOnRemoteError, RemoteError
from aliquot.remote.torch import guard, profiling
from aliquot.remote.torch.session import ATTACHED, Session
from aliquot.remote.torch.tensor import SPECIAL, RemoteTensor, issue
from aliquot.remote.torch.transfer import empty

_aten = torch.ops.aten
_current = 0


def attach(channel: Channel) -> torch.device:
    """Open a session on a channel; its device is the first free one of `aliquot:0`, `aliquot:1` and so on.

    Raises:
        RemoteRefusedError: the ends don't fit together.
    """
    free = next((index for index, session in enumerate(ATTACHED) if session is None), len(ATTACHED))
    if free:
        _make_room()
    session = Session(channel, free)
    if free == len(ATTACHED):
        ATTACHED.append(session)
    else:
        ATTACHED[free] = session
    profiling.attached(session)
    return session.device


@cache
def _make_room() -> None:
    """Have autograd count more than one device, which it does once, at the first backward; a guard that PyTorch has for
    its fake tensors says eight.
    """
    with contextlib.suppress(NotOnRemoteError):
        guard.install()


def detach(device: torch.device | str | int) -> None:
    """End the session of a device: the server frees everything that it held."""
    session = session_of(device)
    profiling.detached(session)
    ATTACHED[session.index] = None
    session.close()


def session_of(device: torch.device | str | int | None = None) -> Session:
    """The session of a device; without one, of the current device.

    Raises:
        RemoteError: there is none.
    """
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else device
    index = _current if index is None else index
    session = ATTACHED[index] if 0 <= index < len(ATTACHED) else None
    if session is None:
        raise RemoteError(f"there is no remote device aliquot:{index}: connect to a lease first")
    return session


# ------------------------------------------------------------------------------------------------ what PyTorch calls


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, _: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


class Stream:
    """Work on a remote device is done in the order of its issue: there is one stream, and this is it."""

    def __init__(self, device: torch.device | str | int | None = None, **_: object) -> None:
        self.device = session_of(device).device

    def synchronize(self) -> None:
        """Wait until everything that was issued has been done."""
        session_of(self.device).synchronize()

    def wait_stream(self, _: object) -> None:
        """Nothing to do: there is one stream."""

    def wait_event(self, _: object) -> None:
        """Nothing to do: there is one stream."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event at this place in the stream."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether everything was done; waits for it."""
        self.synchronize()
        return True

    def is_capturing(self) -> bool:
        """Never: nothing of CUDA is recorded here."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Event:
    """A place in the stream of a device. Times are the client's, taken when the server has reached it."""

    def __init__(self, enable_timing: bool = False, **_: object) -> None:  # noqa: FBT001
        self._session: Session | None = None
        self._request = 0
        self._time: float | None = None
        self._timed = enable_timing

    def record(self, stream: Stream | None = None) -> None:
        """Put it behind what was issued until now."""
        session = self._session = session_of(stream.device if stream else None)
        if self._time is None and self._request:
            session.arrivals.pop(self._request, None)
        self._request = session.request()
        self._time = None
        session.arrivals[self._request] = 0.0
        session.flush()
        session.send(messages.Mark(self._request))

    def synchronize(self) -> None:
        """Wait until the server has reached it."""
        if self._session is not None and self._time is None:
            self._session.wait(self._request, site=self._session.site(sys._getframe(1)), what="an event")
            self._time = self._session.arrivals.pop(self._request)

    def query(self) -> bool:
        """Whether the server has reached it; waits for it."""
        self.synchronize()
        return True

    def wait(self, _: object = None) -> None:
        """Nothing to do: there is one stream."""

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this one to another.

        Raises:
            RuntimeError: one was not recorded with `enable_timing`.
        """
        self.synchronize()
        other.synchronize()
        if not self._timed or not other._timed or self._time is None or other._time is None:
            raise RuntimeError("both events must be recorded with enable_timing=True")
        return (other._time - self._time) * 1000


class _Current:
    """Makes a device the current one for a while."""

    def __init__(self, device: torch.device | str | int) -> None:
        self._index = session_of(device).index
        self._before = 0

    def __enter__(self) -> None:
        global _current
        self._before, _current = _current, self._index

    def __exit__(self, *_: object) -> None:
        global _current  # noqa: PLW0603
        _current = self._before


class _Module(types.ModuleType):
    """`torch.aliquot`, as other devices have one."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return any(session is not None for session in ATTACHED)

    def device_count(self) -> int:
        return len(ATTACHED)

    def current_device(self) -> int:
        return _current

    def set_device(self, device: torch.device | str | int) -> None:
        global _current  # noqa: PLW0603
        _current = session_of(device).index

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        session_of().seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for session in ATTACHED:
            if session is not None and session.closed is None:
                session.seed(seed)

    def initial_seed(self) -> int:
        return session_of().welcome.seed

    def get_rng_state(self, device: torch.device | str | int | None = None) -> torch.Tensor:
        session = session_of(device)
        request = session.request()
        _, state = session.ask(messages.Random(request), request)
        return torch.frombuffer(state, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: torch.device | str | int | None = None) -> None:
        session = session_of(device)
        request = session.request()
        session.ask(messages.Random(request, bytes(state.numpy())), request)

    def synchronize(self, device: torch.device | str | int | None = None) -> None:
        session_of(device).synchronize()

    def memory_allocated(self, device: torch.device | str | int | None = None) -> int:
        return session_of(device).statistics()["used_bytes"]

    def max_memory_allocated(self, device: torch.device | str | int | None = None) -> int:
        return session_of(device).statistics()["peak_bytes"]

    def mem_get_info(self, device: torch.device | str | int | None = None) -> tuple[int, int]:
        numbers = session_of(device).statistics()
        return numbers["limit_bytes"] - numbers["used_bytes"], numbers["limit_bytes"]

    def empty_cache(self) -> None:
        pass

    def current_stream(self, device: torch.device | str | int | None = None) -> Stream:
        return Stream(device)

    def default_stream(self, device: torch.device | str | int | None = None) -> Stream:
        return Stream(device)

    def stream(self, stream: Stream) -> Stream:
        return stream

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_device_name(self, device: torch.device | str | int | None = None) -> str:
        session = session_of(device)
        return f"aliquot remote {session.welcome.device}"


module = _Module("torch.aliquot", "Remote devices.")


def _empty(size: Sequence[int], **kwargs: Any) -> torch.Tensor:
    session = session_of(kwargs.get("device"))
    shape = tuple(size)
    stride: Sequence[int] = contiguous_stride(shape)
    memory_format = kwargs.get("memory_format")
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        stride = torch.empty(shape, device="meta", memory_format=memory_format).stride()
    return empty(session, shape, stride, kwargs.get("dtype") or torch.get_default_dtype())


def _zeros(size: Sequence[int], **kwargs: Any) -> torch.Tensor:
    """Zeros that other devices need not store: gradients that are none."""
    return _empty(size, **kwargs).zero_()


def _empty_strided(size: Sequence[int], stride: Sequence[int], **kwargs: Any) -> torch.Tensor:
    return empty(session_of(kwargs.get("device")), size, stride, kwargs.get("dtype") or torch.get_default_dtype())


def _refuse_location(_: object, location: str) -> None:
    """What is loaded is loaded here first: a storage by itself can't be elsewhere."""
    if location.startswith("aliquot"):
        raise RemoteError(f"can't load straight to {location}: load with map_location='cpu', then move by .to()")


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001
    """Copies that PyTorch makes below our tensors' own path, as for `torch.tensor(…, device=…)`."""
    copied: torch.Tensor = SPECIAL[_aten.copy_.default](_aten.copy_.default, (target, source, non_blocking), {})
    return copied


def _element(tensor: torch.Tensor) -> Any:
    """Elements that PyTorch asks for below our tensors' own path, as for `torch.tensor([one of ours, 2.0])`."""
    return SPECIAL[_aten._local_scalar_dense.default](None, (tensor,), {})


def _factory(operator: Any) -> Any:
    """A kernel for an operator that makes tensors of nothing: it is run there."""
    named = {argument.name for argument in operator._schema.arguments}

    def make(*args: Any, **kwargs: Any) -> Any:
        session = session_of(kwargs.get("device"))
        kwargs = {name: value for name, value in kwargs.items() if value is not None and name != "pin_memory"}
        if "device" in named:
            kwargs["device"] = session.device
        return issue(session, operator, args, kwargs)

    return make


_FACTORIES = (
    *("arange", "arange.start", "arange.start_step", "linspace", "logspace"),
    *("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"),
    *("eye", "eye.m", "randperm", "tril_indices", "triu_indices"),
)

_library = torch.library.Library("aten", "IMPL")


def register() -> None:
    """Make the device known to PyTorch, once a process."""
    hook, guard = _Hooks(), _Guard()
    vars(module).update(Stream=Stream, Event=Event, device=_Current)
    _setup_privateuseone_for_python_backend("aliquot", backend_module=module, hook=hook, device_guard=guard)
    supported = _foreach_supported_types
    if RemoteTensor not in supported:
        supported.append(RemoteTensor)
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.serialization.register_package(15, lambda _: None, _refuse_location)
    register_factories("PrivateUse1")


def register_factories(key: str) -> None:
    """Make tensors of nothing on the devices of a dispatch key, once a process and key."""
    _library.impl("empty.memory_format", _empty, key)
    _library.impl("empty_strided", _empty_strided, key)
    _library.impl("_efficientzerotensor", _zeros, key)
    _library.impl("_copy_from", _copy_from, key)
    _library.impl("_local_scalar_dense", _element, key)
    for name in _FACTORIES:
        base, _, overload = name.partition(".")
        operator = getattr(getattr(_aten, base), overload or "default")
        _library.impl(name, _factory(operator), key)
