"""Has PyTorch take devices named `cuda` where there is none.

Its C++ asks a *device guard* for the current device of a type. Builds for CUDA have one, and PyTorch itself replaces it
by one that does nothing where there is no GPU, for its fake tensors. Builds for processors have none, and PyTorch
replaces only what is there; so an empty one is put there for the moment of asking, every answer of which is 0.
"""

from __future__ import annotations

import ctypes

import torch

from aliquot.remote.errors import NotOnRemoteError

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
"""`c10::impl::device_guard_impl_registry`: a pointer for each type of device."""
_CUDA = 1
"""`c10::DeviceType::CUDA`, whose number is part of PyTorch's serialized formats."""
_VIRTUAL_MAX = 128
"""More than a guard has virtual functions."""
_Answer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def install() -> None:
    """Do it, once a process. Raises `NotOnRemoteError` where this PyTorch can't."""
    try:
        registry = (ctypes.c_void_p * (_CUDA + 1)).in_dll(ctypes.CDLL(torch._C.__file__), _REGISTRY)
        ensure = torch._C._ensureCUDADeviceGuardSet
    except (AttributeError, ValueError, OSError) as error:
        raise NotOnRemoteError(
            f"the name cuda with PyTorch {torch.__version__}",
            f"use the devices of `aliquot.remote.torch` by their own names ({error})",
        ) from error
    if registry[_CUDA]:
        ensure()
        return
    zero = _Answer(lambda _: 0)
    functions = (ctypes.c_void_p * _VIRTUAL_MAX)(*[ctypes.cast(zero, ctypes.c_void_p).value] * _VIRTUAL_MAX)
    empty = (ctypes.c_void_p * 1)(ctypes.addressof(functions))
    registry[_CUDA] = ctypes.addressof(empty)
    try:
        ensure()
    finally:
        replaced = registry[_CUDA] != ctypes.addressof(empty)
        if not replaced:
            registry[_CUDA] = None
    if not replaced:
        raise NotOnRemoteError(
            f"the name cuda with PyTorch {torch.__version__}",
            "use the devices of `aliquot.remote.torch` by their names",
        )
