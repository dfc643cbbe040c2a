"""Orders to cut a card: what an agent obeys, what it refuses, and what it says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.agent.disk.durable import read_record
from aliquot.v1 import agent_pb2, types_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import Node, desired
from tests.agent.test_enforcement_on_processes import grant

NO_PERMISSION = 4
pytestmark = pytest.mark.root("to cut a card")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """One A100-40 in MIG mode with no parts, on a node that lets it be cut."""
    (tmp_path / "node").mkdir()
    path = tmp_path / "node" / "gpus"
    made = Node(tmp_path / "node", simgpu.create(path, ["A100-40"], host=str(tmp_path)), path)
    made.scenario.set_mig_mode(0, enabled=True)
    made.environment |= {"ALIQUOT_AGENT_MIG_REPARTITION": "true", "ALIQUOT_AGENT_ENFORCEMENT_TIERS": "mig,watchdog"}
    yield made
    made.close()


def order(coordinator: Coordinator, card: str, number: int, *parts: tuple[int, str], leader_epoch: int = 1) -> None:
    cut = agent_pb2.Cut(
        leader_epoch=leader_epoch,
        session_epoch=coordinator.session_epoch,
        number=number,
        card_uuid=card,
        parts=[types_pb2.MigPart(start=start, profile=profile) for start, profile in parts],
    )
    coordinator.send(agent_pb2.CoordinatorMessage(cut=cut))


async def answer(coordinator: Coordinator, number: int) -> types_pb2.MigCard:
    """The card as the agent describes it once it says what became of an order."""

    def last() -> types_pb2.MigCard:
        return coordinator.snapshots[-1].node.cards[0]

    await coordinator.until(
        lambda: bool(coordinator.snapshots) and bool(coordinator.snapshots[-1].node.cards) and last().cut == number,
        f"order {number} is answered",
    )
    return last()


def parts_of(card: types_pb2.MigCard) -> list[tuple[int, str]]:
    return [(part.start, part.profile) for part in card.parts]


async def test_an_order_is_carried_out_once_and_answered_again(node: Node, coordinator: Coordinator) -> None:
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    card = coordinator.snapshots[0].node.cards[0]
    assert (card.cut, parts_of(card)) == (0, [])
    assert {"1g.5gb", "7g.40gb"} <= {profile.name for profile in card.profiles}

    order(coordinator, card.uuid, 7, (0, "1g.5gb"), (4, "3g.20gb"))
    told = await answer(coordinator, 7)
    assert not told.problem
    assert parts_of(told) == [(0, "1g.5gb"), (4, "3g.20gb")]
    assert {part.uuid for part in told.parts} == {device.uuid for device in node.status().devices}

    # An older number, and one again, change nothing; both are answered with the last result.
    snapshots = len(coordinator.snapshots)
    order(coordinator, card.uuid, 6, (0, "7g.40gb"))
    order(coordinator, card.uuid, 7, (0, "7g.40gb"))
    await coordinator.until(lambda: len(coordinator.snapshots) > snapshots, "it is answered again")
    assert parts_of(await answer(coordinator, 7)) == [(0, "1g.5gb"), (4, "3g.20gb")]
    assert read_record(node.state_dir / "cuts.record", "cuts", dict)["cuts"][card.uuid]["number"] == 7


async def test_a_part_that_is_reserved_is_never_destroyed(node: Node, coordinator: Coordinator) -> None:
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    card = coordinator.snapshots[0].node.cards[0].uuid
    order(coordinator, card, 1, (0, "1g.5gb"), (1, "1g.5gb"))
    told = await answer(coordinator, 1)
    kept = told.parts[0]
    device = next(each for each in node.status().devices if each.uuid == kept.uuid)
    usable = device.memory_total_bytes - device.memory_reserved_bytes
    coordinator.desire(desired(kept.uuid, share_milli=1000, memory_bytes=usable))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_ACTIVE)
    order(coordinator, card, 2, (0, "7g.40gb"))
    told = await answer(coordinator, 2)
    assert "1g.5gb from 0 is in use" in told.problem
    assert parts_of(told) == [(0, "1g.5gb"), (1, "1g.5gb")], "nothing was changed"
    order(coordinator, card, 3, (0, "1g.5gb"), (4, "3g.20gb"))
    told = await answer(coordinator, 3)
    assert not told.problem
    assert parts_of(told) == [(0, "1g.5gb"), (4, "3g.20gb")]
    assert told.parts[0].uuid == kept.uuid


async def test_without_leave_nothing_is_offered_and_nothing_obeyed(node: Node, coordinator: Coordinator) -> None:
    node.environment["ALIQUOT_AGENT_MIG_REPARTITION"] = "false"
    await grant(node, coordinator)
    assert not coordinator.snapshots[0].node.cards
    snapshots = len(coordinator.snapshots)
    order(coordinator, node.scenario.devices()[0].uuid, 1, (0, "1g.5gb"))
    await coordinator.until(lambda: len(coordinator.snapshots) > snapshots, "it is answered")
    assert not node.scenario.devices()[0].mig_uuids
    assert "mig.repartition" in node.log


async def test_an_order_of_a_leader_that_was_replaced_is_not_obeyed(node: Node, coordinator: Coordinator) -> None:
    coordinator.leader_epoch = 5
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    card = coordinator.snapshots[0].node.cards[0].uuid
    order(coordinator, card, 1, (0, "7g.40gb"), leader_epoch=4)
    order(coordinator, card, 2, (0, "1g.5gb"), leader_epoch=5)
    assert parts_of(await answer(coordinator, 2)) == [(0, "1g.5gb")]
    assert "7g.40gb from 0" not in node.log


def told(coordinator: Coordinator) -> str:
    """What the agent says is wrong with its node."""
    return "; ".join(condition.text for condition in coordinator.snapshots[-1].node.conditions)


async def test_a_card_that_can_not_be_read_is_no_trouble_unless_it_is_to_be_cut(
    node: Node, coordinator: Coordinator
) -> None:
    node.scenario.fail("nvmlDeviceGetGpuInstances", NO_PERMISSION)
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    assert not coordinator.snapshots[0].node.cards
    assert "can't be read" in told(coordinator)
    node.terminate()
    node.environment["ALIQUOT_AGENT_MIG_REPARTITION"] = "false"
    snapshots = len(coordinator.snapshots)
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: len(coordinator.snapshots) > snapshots, "another")
    assert "can't be read" not in told(coordinator)


async def test_a_record_that_can_be_neither_read_nor_written_keeps_no_agent_from_starting(
    node: Node, coordinator: Coordinator
) -> None:
    (node.state_dir / "cuts.record" / "in the way").mkdir(parents=True)
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    assert "how cards were cut is not known any more" in told(coordinator)
    assert "could not be written down" in node.log
    order(coordinator, coordinator.snapshots[0].node.cards[0].uuid, 1, (0, "1g.5gb"))
    assert parts_of(await answer(coordinator, 1)) == [(0, "1g.5gb")]
