"""What an agent on an NVIDIA node loads: other vendors, and what no lease asks for, cost it nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from aliquot import simgpu

LEFT_OUT = (
    "aliquot.agent.devices.ascend",
    "aliquot.agent.devices.dcmi",
    "aliquot.agent.devices.drm",
    "aliquot.agent.devices.gaudi",
    "aliquot.agent.devices.plain",
    "aliquot.agent.devices.tpu",
    "aliquot.agent.devices.vnpu",
    "aliquot.agent.doctor",
    "aliquot.remote",
    "cryptography",
    "numpy",
    "torch",
)
LOOK = """
import json, sys
import aliquot.agent.main
from aliquot.agent.devices.kinds import make_backend
backend = make_backend("auto")
backend.open()
assert backend.discover()
backend.close()
print(json.dumps(sorted(sys.modules)))
"""


def test_an_agent_on_an_nvidia_node_loads_no_other_vendors_backend(tmp_path: Path) -> None:
    simgpu.create(tmp_path / "gpus", ["A100-80"], host=str(tmp_path))
    environment = {**os.environ, **simgpu.environment(tmp_path / "gpus")}
    ran = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, env=environment)
    modules = json.loads(ran.stdout)
    assert "aliquot.agent.devices.nvml" in modules
    found = [name for name in modules for place in LEFT_OUT if name == place or name.startswith(f"{place}.")]
    assert found == []
