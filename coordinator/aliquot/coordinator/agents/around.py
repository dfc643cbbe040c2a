"""What is around the agents' sessions: whom they ask, and who is told of what they say."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.common.clock import Clock
from aliquot.coordinator.agents.certifying import Certifier
from aliquot.coordinator.agents.overtime import Overtime
from aliquot.coordinator.agents.proving import Prover
from aliquot.coordinator.agents.roster import Roster
from aliquot.coordinator.reading.activity import Activity
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.telemetry import Telemetry
from aliquot.coordinator.reading.usage import ObservedUse
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.writing.writer import Writer


@dataclass(frozen=True, slots=True)
class Around:
    """See the module's docstring."""

    writer: Writer
    view: View
    clock: Clock
    telemetry: Telemetry
    observed: ObservedUse
    activity: Activity
    metrics: Metrics
    roster: Roster
    overtime: Overtime
    prover: Prover
    certifier: Certifier
    pool_secret: bytes
    version: str
