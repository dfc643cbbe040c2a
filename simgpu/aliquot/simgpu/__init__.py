"""Simulated GPUs: a scenario file that the simulated libnvidia-ml and libcuda share, and its control.

`create` makes a machine, `environment` gives the variables with which any program (real pynvml, nvitop, a training
job) uses it, and a `Scenario` changes its hardware under them. `python -m aliquot.simgpu` does the same from
the command line.
"""

from aliquot.simgpu.errors import NotBuiltError as NotBuiltError
from aliquot.simgpu.errors import ScenarioError as ScenarioError
from aliquot.simgpu.errors import SimGpuError as SimGpuError
from aliquot.simgpu.errors import UnknownDeviceError as UnknownDeviceError
from aliquot.simgpu.errors import UnknownModelError as UnknownModelError
from aliquot.simgpu.faults import CALL_CLASSES as CALL_CLASSES
from aliquot.simgpu.faults import MEASURED_LATENCY_NS as MEASURED_LATENCY_NS
from aliquot.simgpu.faults import Fault as Fault
from aliquot.simgpu.libraries import SCENARIO_VARIABLE as SCENARIO_VARIABLE
from aliquot.simgpu.libraries import environment as environment
from aliquot.simgpu.libraries import library_directory as library_directory
from aliquot.simgpu.models import MODELS as MODELS
from aliquot.simgpu.models import Model as Model
from aliquot.simgpu.scenario import FIRST_SYNTHETIC_PID as FIRST_SYNTHETIC_PID
from aliquot.simgpu.scenario import Scenario as Scenario
from aliquot.simgpu.scenario import create as create
from aliquot.simgpu.snapshot import DeviceState as DeviceState
from aliquot.simgpu.snapshot import ProcessState as ProcessState
