"""Facts to journal: made by the core itself, so that they are what a coordinator would write."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Demand, DeviceSpec, NodeSpec, RequestSpec
from aliquot.coordinator.writing.journal.base import Group, Journal
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal

GIB = 1 << 30


class Story:
    """A State and the journal that it is written to, one command a group."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.decider = Decider(State.fresh())
        self.state = self.decider.state
        self.now_ms = 1_000

    def go_on_with(self, state: State) -> None:
        """What was read again, by a decider that remembers nothing."""
        self.decider = Decider(state)
        self.state = state

    def tell(self, *commands: c.Command[Any]) -> None:
        """Decide the commands, and commit what they give as one group."""
        first = self.state.seq + 1
        facts: list[Fact] = []
        for command in commands:
            self.now_ms += 1
            decision = self.decider.decide(command, self.now_ms)
            self.decider.carry_out(decision, self.now_ms)
            facts += decision.facts
        self.journal.commit(Group(first, tuple(facts)))

    def begin(self, leader_epoch: int = 1) -> None:
        """A leader, and a node with two devices."""
        devices = tuple(DeviceSpec(f"GPU-{n}", "A100-80", 80 * GIB, index=n) for n in range(2))
        self.tell(c.StartLeading(leader_epoch), c.DeclareNode(NodeSpec("n1", "n1", devices, agentless=True)))

    def lease(self, number: int) -> None:
        """One small lease."""
        request = RequestSpec(demand=Demand(share_milli=10), tenant="team", ttl_ms=0)
        self.tell(c.Allocate(f"l-{number}", request, key=f"k{number}", body_sha256=b"x" * 32))


def opened(path: Path) -> SqliteJournal:
    """A journal ready to be written."""
    journal = SqliteJournal(path)
    journal.open()
    journal.raise_leader_epoch()
    return journal


def written(path: Path, leases: int) -> Story:
    """A journal with this many leases, closed."""
    story = Story(opened(path))
    story.begin()
    for number in range(leases):
        story.lease(number)
    story.journal.close()
    return story


def damage(path: Path, seq: int) -> None:
    """Have one record of a journal in a file hold what nobody wrote."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE groups SET payload = zeroblob(9) WHERE last_seq = ?", (seq,))
    connection.close()
