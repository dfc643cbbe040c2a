"""Idleness on a whole pool: production coordinators and agents in simulated time, the auditor listening."""

from __future__ import annotations

import pytest

from tests.simulation.stage import Stage

# Whole pools for minutes: watching each line would double their time.
pytestmark = pytest.mark.no_cover

LENDING = """
pool 1 of 1
start
wait 30
queue default idle=lend after=900
allocate lender 0.9,10Gi ttl=86400
work lender 40
wait 130
work lender 0
wait 1080
allocate borrower 0.5,10Gi opportunistic=yes ttl=86400
"""


@pytest.mark.parametrize(
    "script",
    [
        LENDING + "work borrower 30\nwait 120\nwork lender 30\nwait 20\n",
        LENDING + "release lender\nwait 30\n",
        LENDING + "crash leader\nwait 30\nwork lender 50\nwait 90\n",
        LENDING + "cut node-0000\nwait 600\nmend node-0000\nwait 900\n",
    ],
    ids=["back", "released", "over a take-over", "over a lost node"],
)
def test_what_is_lent_comes_back(script: str) -> None:
    stage = Stage()
    assert stage.play_all(script) == []
    auditor = stage.world.auditor
    assert (auditor.facts["lent+"], auditor.facts["failed"]) == (1, 0)
    assert auditor.books.use.loans == 1
    assert auditor.facts["requeued"] == 1, "the borrower waits again"


def test_an_idle_lease_ends_once_its_holder_was_told() -> None:
    stage = Stage()
    script = """
    pool 1 of 1
    start
    wait 30
    queue default idle=release after=1800 warn=900
    allocate job 0.5 ttl=86400
    work job 0
    wait 1200
    told job 1
    wait 1200
    """
    assert stage.play_all(script) == []
    assert stage.world.auditor.facts["idleact"] == 1


def test_nobody_is_ended_whom_no_warning_reached_nor_who_is_exempt() -> None:
    stage = Stage()
    script = """
    pool 1 of 1
    start
    wait 30
    queue default idle=release after=1800 warn=900
    allocate job 0.4 ttl=86400
    allocate demo 0.4 ttl=86400
    work job 0
    work demo 0
    exempt demo 80000
    wait 4000
    """
    assert stage.play_all(script) == []
    assert (stage.world.auditor.facts["idleact"], stage.world.auditor.facts["idle!"]) == (0, 1)
