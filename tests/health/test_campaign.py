"""Every row of the signal table is raised, acted upon, healed and the card returned: production agents and coordinators
in simulated time, with the auditor listening.
"""

from __future__ import annotations

import pytest

from aliquot.agent.core.signals import SIGNALS
from aliquot.common.signs import Remedy, Severity
from tests.simulation.ward import COUNT_TOO_LOW, ROWS, Row, run_row

pytestmark = pytest.mark.no_cover
MTTR_S_MAX = 90


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.signal.cause)
def test_a_row_goes_as_the_table_says(row: Row) -> None:
    outcome = run_row(row)
    assert outcome.passed, outcome
    if row.takes_out:
        assert outcome.told
    if row.signal.severity is Severity.FATAL and row.signal.remedy is Remedy.RESET and not row.note:
        assert outcome.repair_s is not None
        assert outcome.repair_s <= MTTR_S_MAX


def test_every_signal_has_a_row() -> None:
    assert {row.signal for row in ROWS} == {*SIGNALS, COUNT_TOO_LOW}
