"""Errors of remote work that are PyTorch's own as well, and how a server's fault becomes one."""

from __future__ import annotations

import torch

from aliquot.remote.core.messages import Fault
from aliquot.remote.errors import (
    RemoteError,
    RemoteIndexError,
    RemoteMemoryError,
    RemoteNotImplementedError,
    RemoteOperatorError,
    RemoteTypeError,
    RemoteValueError,
)


class RemoteOutOfMemoryError(RemoteMemoryError, torch.OutOfMemoryError):
    """The lease's memory is used up. What was issued after the operator named was not done; go on as you like."""

    reason = "REMOTE_MEMORY"


class RemoteLinAlgError(RemoteOperatorError, torch.linalg.LinAlgError):  # type: ignore[misc,name-defined]
    """An operator failed there with a LinAlgError."""

    reason = "REMOTE_OPERATOR"


_CLASSES: dict[str, type[RemoteOperatorError]] = {
    "index": RemoteIndexError,
    "value": RemoteValueError,
    "type": RemoteTypeError,
    "linalg": RemoteLinAlgError,
    "not_implemented": RemoteNotImplementedError,
}


def from_fault(fault: Fault, site: str) -> RemoteError:
    """The error that tells a program what happened, and at which of its lines."""
    where = f"\n  issued at {site}" if site else ""
    if fault.reason == "out_of_memory":
        memory = RemoteOutOfMemoryError(f"{fault.operator}: {fault.message}{where}")
        memory.operator, memory.site = fault.operator, site
        memory.asked_bytes, memory.used_bytes = fault.asked_bytes, fault.used_bytes
        memory.limit_bytes = fault.limit_bytes
        return memory
    name = f"{fault.operator}: " if fault.operator else ""
    error = _CLASSES.get(fault.reason, RemoteOperatorError)(f"{name}{fault.message}{where}")
    error.operator, error.site = fault.operator, site
    return error
