"""Errors of the simulated GPU.

AliquotError
 └── SimGpuError
      ├── ScenarioError       the scenario file is missing, of another version, or a table of it is full
      ├── UnknownDeviceError  no device of the scenario has this index or UUID
      ├── UnknownModelError   no such GPU model can be simulated
      ├── NotBuiltError       the simulated libraries have not been built yet
      └── SimulationError     a simulated card denies what a program asks for
"""

from __future__ import annotations

from typing import ClassVar

from aliquot.common.errors import AliquotError


class SimGpuError(AliquotError):
    """Anything that goes wrong with a scenario or with the simulated libraries."""

    reason: ClassVar[str] = "SIMGPU"


class ScenarioError(SimGpuError):
    """The scenario file is missing, of another version, or a table of it is full."""

    reason: ClassVar[str] = "SIMGPU_SCENARIO"


class UnknownDeviceError(SimGpuError):
    """No device of the scenario has this index or UUID."""

    reason: ClassVar[str] = "SIMGPU_UNKNOWN_DEVICE"


class UnknownModelError(SimGpuError):
    """No such GPU model can be simulated."""

    reason: ClassVar[str] = "SIMGPU_UNKNOWN_MODEL"


class NotBuiltError(SimGpuError):
    """The simulated libraries have not been built yet."""

    reason: ClassVar[str] = "SIMGPU_NOT_BUILT"


class SimulationError(SimGpuError):
    """A simulated card denies what a program asks for."""

    reason: ClassVar[str] = "SIMGPU_DENIED"
