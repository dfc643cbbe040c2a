"""Simulated GPUs: a scenario file that the simulated libnvidia-ml and libcuda share, and its control.

`create` makes a machine, `environment` gives the variables with which any program (real pynvml, nvitop, a training
job) uses it, and a `Scenario` changes its hardware under them. `python -m aliquot.simgpu` does the same from
the command line.
"""

from aliquot.simgpu.errors import (
    CudaError,
    NotBuiltError,
    ScenarioError,
    SimGpuError,
    UnknownDeviceError,
    UnknownModelError,
)
from aliquot.simgpu.faults import CALL_CLASSES, MEASURED_LATENCY_NS, Fault
from aliquot.simgpu.libraries import SCENARIO_VARIABLE, environment, library_directory
from aliquot.simgpu.models import MODELS, Model
from aliquot.simgpu.scenario import FIRST_SYNTHETIC_PID, Scenario, create
from aliquot.simgpu.snapshot import DeviceState, ProcessState

__all__ = [
    "CALL_CLASSES",
    "FIRST_SYNTHETIC_PID",
    "MEASURED_LATENCY_NS",
    "MODELS",
    "SCENARIO_VARIABLE",
    "CudaError",
    "DeviceState",
    "Fault",
    "Model",
    "NotBuiltError",
    "ProcessState",
    "Scenario",
    "ScenarioError",
    "SimGpuError",
    "UnknownDeviceError",
    "UnknownModelError",
    "create",
    "environment",
    "library_directory",
]
