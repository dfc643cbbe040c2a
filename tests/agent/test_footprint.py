"""What an agent on an NVIDIA node of a pool loads: other vendors, and what few ask for, cost it nothing."""

from __future__ import annotations

import asyncio
import json
import signal

from aliquot.common.connection_string import ConnectionString
from tests.agent.conftest import node
from tests.agent.harness import Node
from tests.coordinator.pool import eventually, running
from tests.enrolment.keyed import invite
from tests.enrolment.test_joining import run_join

__all__ = ["node"]
MODULES_MAX = 152
"""Of our own but the contract's, in one that has a session. Who makes it load less lowers this. Decision 0106 says what
is left, and why."""
LEFT_OUT = (
    "aliquot.agent.devices.ascend",
    "aliquot.agent.devices.dcmi",
    "aliquot.agent.devices.drm",
    "aliquot.agent.devices.gaudi",
    "aliquot.agent.devices.plain",
    "aliquot.agent.devices.tpu",
    "aliquot.agent.devices.vnpu",
    "aliquot.agent.doctor",
    "aliquot.agent.enforce.mps",
    "aliquot.agent.joining",
    "aliquot.agent.metrics.node",
    "aliquot.agent.node_certificate",
    "aliquot.agent.node_key",
    "aliquot.remote",
    "cryptography",
    "csv",
    "difflib",
    "email",
    "http",
    "importlib.metadata",
    "numpy",
    "prometheus_client",
    "tomllib",
    "torch",
)
TELLING = """
import json, os, signal, sys
from aliquot.agent.main import main

def tell(number, frame):
    with open(os.environ["MODULES"] + "~", "w") as file:
        json.dump(sorted(sys.modules), file)
    os.replace(os.environ["MODULES"] + "~", os.environ["MODULES"])

signal.signal(signal.SIGUSR1, tell)
sys.exit(main(sys.argv[1:]))
"""


async def test_an_agent_that_has_joined_loads_nothing_that_it_does_not_use_all_the_time(node: Node) -> None:
    told = node.directory / "modules.json"
    node.environment["MODULES"] = str(told)
    async with running() as pool:
        string = ConnectionString((pool.address,), await invite(pool, "gpu-07"), node="gpu-07").encode()
        assert (await run_join(node, string, "--node-name", "gpu-07"))[0] == 0
        await asyncio.to_thread(node.start, "", "--node-name", "gpu-07", program=("-c", TELLING))
        nodes = pool.coordinator.view.nodes
        await eventually(lambda: [each.state.name for each in nodes.values()] == ["READY"], "it has a session")
        assert node.agent is not None
        node.agent.send_signal(signal.SIGUSR1)
        await eventually(told.exists, "it says what it has loaded")
    modules = json.loads(told.read_text())
    assert "aliquot.agent.devices.nvml" in modules
    assert [name for name in modules for place in LEFT_OUT if name == place or name.startswith(f"{place}.")] == []
    ours = [name for name in modules if name.startswith("aliquot.") and not name.startswith("aliquot.v1")]
    assert len(ours) <= MODULES_MAX
