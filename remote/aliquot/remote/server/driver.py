"""CUDA's driver as an engine of a process that serves a lease: on the part's device, within its memory."""

from __future__ import annotations

from collections.abc import Callable

from aliquot.remote.core.channel import Engine
from aliquot.remote.server.doorkeeper import Part
from aliquot.remote.server.driving import DriverEngine
from aliquot.remote.server.libcuda import DriverError


def make(part: Part, answer: Callable[[bytes], None]) -> Engine:
    """The engine of one session. Raises `LookupError` where the driver can't be used."""
    try:
        return DriverEngine(answer, part.ordinal, part.device_uuid, part.budget)
    except (OSError, DriverError) as error:
        raise LookupError(f"CUDA's driver on this node can't be used: {error}") from error
