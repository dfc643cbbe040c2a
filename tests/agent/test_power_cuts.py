"""What an agent has written down, on a disk that loses whatever was not synced: nothing that was said is unsaid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent.core.model import Intent, Reservation, StopOrder
from aliquot.agent.core.reservations import order_stop
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.identity import Identity
from tests.agent.checkpoint_writer import record
from tests.simulation.sim.disk import IDENTITY, STATE, Died, SimFiles, StateDisk


class Machine:
    """One disk, the agent that runs on it, and what that agent has said to others."""

    def __init__(self, seed: int) -> None:
        self.disk = StateDisk(Random(seed))
        self.alive = True
        self.held: set[str] = set()
        self.stopping: set[str] = set()
        self.unsure: set[str] = set()
        """Being written, or removed, when the agent died."""
        self.epoch = 0
        self.start()

    def start(self) -> None:
        """What is loaded is said."""
        self.alive = True
        files = SimFiles(self.disk, lambda: self.alive)
        self.checkpoint = Checkpoint.open(STATE, "boot", files)
        self.identity = Identity.open(IDENTITY, "node-1", (), files)
        found = {each.slice_id: each for each in self.checkpoint.load()}
        assert not self.checkpoint.notes
        assert self.held - self.unsure <= found.keys() <= self.held | self.unsure
        assert all(found[slice_id].intent is Intent.STOP for slice_id in self.stopping & found.keys() - self.unsure)
        assert self.identity.leader_epoch >= self.epoch
        self.held, self.unsure, self.epoch = set(found), set(), self.identity.leader_epoch
        self.stopping = {slice_id for slice_id, each in found.items() if each.intent is Intent.STOP}

    def die(self) -> None:
        self.alive = False

    def do(self, action: Callable[[], None], slices: set[str]) -> bool:
        """Whether it came to its end; else it is not known what became of these slices."""
        try:
            action()
        except Died:
            self.unsure |= slices
            return False
        return True

    def save(self, records: list[Reservation]) -> None:
        slices = {each.slice_id for each in records}
        if self.do(lambda: self.checkpoint.save(records), slices):
            self.held |= slices
            self.stopping -= slices
            self.stopping |= {each.slice_id for each in records if each.intent is Intent.STOP}

    def forget(self, slices: set[str]) -> None:
        if self.do(lambda: self.checkpoint.forget(sorted(slices)), slices):
            self.held -= slices
            self.stopping -= slices

    def obey(self, epoch: int) -> None:
        if self.do(lambda: self.identity.obey(epoch), set()):
            self.epoch = max(self.epoch, epoch)


NUMBERS = st.sets(st.integers(0, 4), min_size=1, max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from(["save", "stop", "forget", "obey", "crash", "cut"]), NUMBERS), max_size=25)


@given(seed=st.integers(0, 1 << 32), steps=STEPS)
def test_what_was_said_before_a_loss_of_power_holds_after_it(seed: int, steps: list[tuple[str, set[int]]]) -> None:
    machine = Machine(seed)
    cut = False
    for what, which in steps:
        slices = [record(number) for number in sorted(which)]
        if what == "save":
            machine.save(slices)
        elif what == "stop":
            machine.save([order_stop(each, StopOrder(5, 1000, "released"), 3) for each in slices])
        elif what == "forget":
            machine.forget({each.slice_id for each in slices})
        elif what == "obey":
            machine.obey(max(which))
        else:  # the agent, or the whole machine, ends in the middle of what comes next
            machine.disk.dies_in_next_save, cut = machine.die, what == "cut"
        if not machine.alive:
            if cut:
                machine.disk.lose_power()
            machine.start()
    machine.disk.dies_in_next_save = None
    machine.disk.lose_power()
    machine.start()


@pytest.mark.parametrize("seed", range(8))
def test_what_a_restarted_agent_has_seen_is_there_after_a_loss_of_power(seed: int) -> None:
    disk = StateDisk(Random(seed))
    alive = [True]
    files = SimFiles(disk, lambda: alive[0])
    sync = files.sync_directory

    def die_before_the_sync(path: Path) -> None:
        alive[0] = False
        raise Died

    first = Checkpoint.open(STATE, "boot", files)
    first.save([record(1)])
    files.sync_directory = die_before_the_sync  # type: ignore[method-assign]
    with pytest.raises(Died):
        first.save([record(2)])
    alive[0], files.sync_directory = True, sync  # type: ignore[method-assign]
    seen = Checkpoint.open(STATE, "boot", files).load()
    assert [each.slice_id for each in seen] == ["l-1.1.0", "l-2.1.0"]
    disk.lose_power()
    assert Checkpoint.open(STATE, "boot", files).load() == seen


def test_a_leader_that_could_not_be_written_down_is_written_down_later() -> None:
    disk = StateDisk(Random(1))
    files = SimFiles(disk, lambda: True)
    identity = Identity.open(IDENTITY, "node-1", (), files)
    disk.full = True
    with pytest.raises(OSError, match="no space"):
        identity.obey(7)
    assert identity.leader_epoch == 7
    disk.full = False
    identity.obey(7)
    disk.lose_power()
    assert Identity.open(IDENTITY, "node-1", (), files).leader_epoch == 7
