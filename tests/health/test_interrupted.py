"""Whatever goes down while a card is out of service, in whichever state: it returns, and nothing is done twice."""

from __future__ import annotations

import pytest

from aliquot.agent.core import signals
from aliquot.v1 import pool_pb2, types_pb2
from tests.simulation.faults import Fault
from tests.simulation.stage import POOL
from tests.simulation.ward import ROWS, Ward

pytestmark = pytest.mark.no_cover

STATES = ("QUARANTINED", "DRAINED", "REPAIRING", "VERIFYING", "PROBATION")
INTERRUPTIONS = {
    "the agent is killed": "agent.crash",
    "the node loses its power": "agent.power",
    "the coordinator is killed": "coordinator.crash",
    "another coordinator takes over": "coordinator.usurped",
    "the coordinator's clock goes back": "coordinator.wall_back",
    "the coordinator's clock goes forward": "coordinator.wall_forward",
    "the node's clock is set": "agent.wall_step",
    "two agents claim to be the node": "node.twin",
}
(ROW,) = (row for row in ROWS if row.signal is signals.RECOVERY_RESET)


def told(ward: Ward, *, with_steps: bool = False) -> list[pool_pb2.Incident]:
    """All incidents; none while no coordinator answers."""
    data = ward._call(POOL, "GetHealth", pool_pb2.GetHealthRequest())
    found = pool_pb2.Health.FromString(data) if data is not None else pool_pb2.Health()
    incidents = [*found.open, *found.closed]
    return [ward.health(each.number).open[0] for each in found.open] if with_steps else incidents


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", INTERRUPTIONS.values(), ids=INTERRUPTIONS)
def test_a_card_returns_whatever_goes_down_meanwhile(kind: str, state: str) -> None:
    ward = Ward()
    wanted = types_pb2.Standing.Value(f"STANDING_{state}")

    def stands() -> bool:
        return any(wanted in [step.state for step in each.steps] for each in told(ward, with_steps=True))

    def is_back() -> bool:
        incidents = told(ward)
        return bool(incidents) and all(each.back_ms for each in incidents)

    with ward.playing():
        ward.open()
        ROW.raised(ward)
        assert ward.until(stands, 900), ward.violations
        ward.world.injector.inject(Fault(0, kind, 20_000, 1))
        ward.play("wait 30")
        ward.world.injector.stop()
        assert ward.until(is_back, 7_200), ward.violations
        assert not ward.violations
