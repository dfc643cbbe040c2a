"""Writes a journal of a small pool on which much happens: `python -m tests.journal.busy SEED FILE.tar.gz`.

What happens is what a simulated pool makes durable, with administrators, money, devices that fail and machines that
restart. Beside the journal, in the same archive, is one snapshot, taken after the group at which most states of leases,
slices and nodes are there at once. What is printed is the `hash_of` its end, for `MEANINGS`
in `saved`. To be written by a release, for the versions after it.
"""

from __future__ import annotations

import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest import mock

from aliquot.coordinator.core.books.leading import LeaderStarted
from aliquot.coordinator.core.evolve import evolve
from aliquot.coordinator.core.state import State
from aliquot.coordinator.writing.journal import codec
from aliquot.coordinator.writing.journal.base import Group
from aliquot.coordinator.writing.journal.snapshotter import take_snapshot
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from tests.journal.saved import hash_of
from tests.simulation.faults import KINDS, schedule
from tests.simulation.sim.store import Store
from tests.simulation.sim.world import CROWDED, World

MORE = ("net.cut_node", "agent.crash", "agent.power", "agent.state_lost", "coordinator.crash")
PEOPLE = ("launcher.release_early", "launcher.vanish", "launcher.burst")


def played(seed: int) -> list[Group]:
    """All that its coordinators made durable."""
    config = replace(CROWDED, nodes=6, launchers=6, busy_s=55, settle_s=300, faults_per_s=1.6)
    kinds = [kind for kind in KINDS if kind.startswith(("admin.", "money.", "device.", "process."))]
    kinds.remove("admin.remove")
    world = World(seed, config, schedule(Random(seed), config, [*kinds, *MORE, *PEOPLE]))
    groups: list[Group] = []

    def append(store: Store, record: codec.Record, epoch: int) -> None:
        groups.append(codec.decode(record))
        original(store, record, epoch)

    original = Store.append
    with mock.patch.object(Store, "append", append):
        result = world.run()
    assert not result.violations, result.violations
    return groups


def variety(state: State) -> int:
    """How many states of leases, slices and nodes there are at once."""
    slices = {piece.state for lease in state.leases.values() for piece in lease.slices}
    nodes = {(node.state, node.cordoned) for node in state.nodes.values()}
    return len({lease.state for lease in state.leases.values()}) + len(slices) + len(nodes) + bool(state.holds)


def write(groups: list[Group], path: Path) -> State:
    """The journal, and its snapshot."""
    state, varieties = State.fresh(), []
    for group in groups:
        for fact in group.facts:
            evolve(state, fact)
        varieties.append(variety(state))
    midst = varieties.index(max(varieties))
    journal = SqliteJournal(path)
    journal.open()
    epoch = journal.raise_leader_epoch()
    for number, group in enumerate(groups):
        for fact in group.facts:
            while isinstance(fact, LeaderStarted) and epoch < fact.leader_epoch:
                epoch = journal.raise_leader_epoch()
        journal.commit(group)
        if number == midst:
            take_snapshot(path)
    journal.close()
    return state


def main() -> None:
    """The program."""
    seed, target = int(sys.argv[1]), Path(sys.argv[2])
    with TemporaryDirectory() as folder:
        state = write(played(seed), Path(folder, "journal.db"))
        with tarfile.open(target, "w:gz") as tar:
            tar.add(folder, arcname=".")
    sys.stdout.write(f"{hash_of(state)}\n")


if __name__ == "__main__":
    main()
