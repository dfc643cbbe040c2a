"""Machines that are woken when somebody waits and put to sleep when nobody does, whatever their provider does."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.stage import Stage

BEGIN = """
pool 3 of 1
asleep node-0001
asleep node-0002
start
wait 2
"""
BUSY = """
allocate one 1 ttl=3600
allocate two 1 until=granted ttl=3600
allocate three 1 until=granted ttl=3600
"""


def played(script: str) -> Stage:
    """A stage on which all went well."""
    stage = Stage()
    assert stage.play_all(BEGIN + script) == []
    return stage


@pytest.mark.parametrize("kind", ["honest", "twice"])
def test_machines_come_for_those_who_wait_and_go_when_nobody_does(kind: str) -> None:
    stage = played(
        f"offer\nprovider {kind}\n{BUSY}wait 60\nget two\nget three\nrelease two\nrelease three\nrelease one\nwait 180"
    )
    books = stage.world.auditor.books
    assert books.supply.done == 4
    assert [machine.state for machine in books.machines.values() if machine.name != "host-0000"] == [5, 5]


@pytest.mark.parametrize("kind", ["late", "never", "fails", "hangs"])
def test_a_provider_that_is_no_good_is_asked_again_and_nothing_is_lost(kind: str) -> None:
    stage = played(f"offer late=30\nprovider {kind}\n{BUSY}wait 240\nprovider honest\nwait 600\nrelease one\nwait 5")
    books = stage.world.auditor.books
    assert books.supply.done >= 1
    assert books.waiting == 0


def test_a_coordinator_that_is_killed_forgets_no_order() -> None:
    stage = played(f"offer\n{BUSY}wait 30\ncrash leader\nwait 30\nprovider honest\nwait 90")
    assert stage.world.auditor.books.waiting == 0


def test_what_a_guarantee_counts_on_stays() -> None:
    stage = played(
        f"offer\nprovider honest\n{BUSY}wait 60\npromise dev 3\nrelease one\nrelease two\nrelease three\nwait 300"
    )
    assert not any(order["way"] == 2 for order in stage.world.auditor.books.supply.orders.values())
    assert stage.world.auditor.facts["order+"] == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_day_of_chance(seed: int) -> None:
    """Requests come and go, providers change their minds, leaders and agents are killed; then all comes to rest."""
    random = Random(seed)
    lines, living = ["offer late=40 rest=60", "provider honest"], 0
    for number in range(30):
        match random.randrange(8):
            case 0 | 1 | 2 if living < 3:
                lines.append(f"allocate l{number} 1 until=granted ttl=3600")
                living += 1
            case 3 | 4:
                lines.append(f"wait {random.choice((5, 30, 90))}")
            case 5:
                lines.append(
                    f"provider {random.choice(('honest', 'honest', 'twice', 'late', 'never', 'fails', 'hangs'))}"
                )
            case 6:
                lines.append("crash leader")
            case _:
                lines.append(f"wait {random.choice((1, 10))}")
    played("\n".join([*lines, "provider honest", "wait 900"]))
