"""What the auditor takes for a reason to signal a program of a lease."""

from __future__ import annotations

import signal
from random import Random

import pytest

from tests.simulation.auditor.overruns import ANSWERS_FOR_US, HEARD_LATE_US, OBEY_US, OVER_FOR_US, OverrunsAudit
from tests.simulation.sim.loop import SimLoop
from tests.simulation.sim.machine import ProcessTable, SimMachine, SimProc

GPU = "GPU-a"
LIMIT = 1_000


class Scene:
    """Two members of a lease on one machine, and a program of each."""

    def __init__(self) -> None:
        self.now_us = 5 * ANSWERS_FOR_US
        self.limits = {("l-1", 0): LIMIT, ("l-1", 1): LIMIT, ("l-2", 0): LIMIT}
        loop = SimLoop(lambda: 0)
        self.machine = SimMachine(loop, Random(1), ProcessTable(), "node-0001", [], cgroups=True)
        self.audit = OverrunsAudit(lambda _, lease, member, uuid: self.limits[lease, member], lambda: self.now_us)
        self.first, self.sibling, self.other = self.program("l-1", 0), self.program("l-1", 1), self.program("l-2", 0)

    def program(self, lease_id: str, member: int) -> SimProc:
        proc = self.machine.start(lease_id=lease_id)
        proc.member = member
        self.hold(proc, LIMIT)
        return proc

    def hold(self, proc: SimProc, size: int) -> None:
        proc.memory[GPU] = size
        self.audit.look(self.machine, proc.lease_id)

    def later(self, us: int) -> None:
        self.now_us += us


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("what", [signal.SIGTERM, signal.SIGKILL])
def test_who_was_never_over_is_not_signalled(scene: Scene, what: signal.Signals) -> None:
    scene.hold(scene.first, LIMIT + 1)
    scene.later(OBEY_US)
    assert "within its limits" in scene.audit.wrong(scene.other, what)


def test_all_members_answer_with_sigkill_for_what_one_did_and_nobody_else_gets_sigterm_for_it(scene: Scene) -> None:
    scene.hold(scene.first, LIMIT + 1)
    assert not scene.audit.wrong(scene.first, signal.SIGTERM)
    assert "within its limits" in scene.audit.wrong(scene.sibling, signal.SIGTERM)
    scene.later(OBEY_US)
    assert not scene.audit.wrong(scene.first, signal.SIGKILL)
    assert not scene.audit.wrong(scene.sibling, signal.SIGKILL)


def test_nobody_is_killed_before_there_was_time_to_obey(scene: Scene) -> None:
    scene.hold(scene.first, LIMIT + 1)
    scene.later(OBEY_US - 1)
    assert scene.audit.wrong(scene.first, signal.SIGKILL) == "has been over its limits for 499 ms only"


def test_an_excess_of_less_than_a_minute_ago_counts(scene: Scene) -> None:
    scene.hold(scene.first, LIMIT + 1)
    scene.hold(scene.first, LIMIT)
    scene.later(ANSWERS_FOR_US - 1)
    assert "within its limits" in scene.audit.wrong(scene.first, signal.SIGKILL)
    scene.hold(scene.first, LIMIT + 1)
    assert not scene.audit.wrong(scene.first, signal.SIGKILL)
    scene.hold(scene.first, LIMIT)
    scene.later(ANSWERS_FOR_US + 1)
    scene.hold(scene.first, LIMIT + 1)
    assert "0 ms only" in scene.audit.wrong(scene.first, signal.SIGKILL)


def test_who_stays_over_the_limit_without_doing_anything_is_over_it(scene: Scene) -> None:
    scene.hold(scene.first, LIMIT + 1)
    scene.later(2 * OVER_FOR_US)
    assert not scene.audit.wrong(scene.first, signal.SIGTERM)


def test_a_limit_that_falls_counts_like_memory_that_grows(scene: Scene) -> None:
    scene.limits["l-1", 0] = LIMIT // 2
    scene.audit.look(scene.machine, "l-1")
    scene.later(OBEY_US)
    assert not scene.audit.wrong(scene.first, signal.SIGKILL)


def test_leases_of_one_tenant_answer_for_one_another() -> None:
    scene = Scene()
    scene.audit = OverrunsAudit(
        lambda _, lease, member, uuid: scene.limits[lease, member], lambda: scene.now_us, lambda lease: "tenant"
    )
    scene.hold(scene.first, LIMIT + 1)
    scene.later(OBEY_US)
    scene.hold(scene.first, LIMIT)
    scene.hold(scene.other, LIMIT + 1)
    assert not scene.audit.wrong(scene.other, signal.SIGKILL)


def test_what_other_nodes_hear_late_of_a_tenant_may_still_count_there() -> None:
    scene = Scene()
    scene.audit = OverrunsAudit(
        lambda _, lease, member, uuid: scene.limits[lease, member], lambda: scene.now_us, lambda lease: "tenant"
    )
    for beyond_us, answers in ((-1, True), (1, False)):
        scene.hold(scene.first, LIMIT + 1)
        scene.hold(scene.first, LIMIT)
        scene.later(ANSWERS_FOR_US + HEARD_LATE_US + beyond_us)
        scene.hold(scene.other, LIMIT + 1)
        assert scene.audit.wrong(scene.other, signal.SIGKILL) == (
            "" if answers else "has been over its limits for 0 ms only"
        )
        scene.hold(scene.other, LIMIT)
        scene.later(2 * (ANSWERS_FOR_US + HEARD_LATE_US))
