"""An agent beside a driver that counts energy, and beside one that does not."""

from __future__ import annotations

import asyncio

import pynvml

from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import Node, auntil, desired
from tests.agent.test_enforcement_on_processes import grant
from tests.agent.test_metrics_endpoint import scrape, value


async def test_what_a_lease_has_drawn_is_told_at_its_end_and_to_scrapers(node: Node, coordinator: Coordinator) -> None:
    node.scenario.set(0, power_mw=200_000)
    await grant(node, coordinator, desired(node.uuids[0]), desired(node.uuids[0], slice_id="l-2.1.0", lease_id="l-2"))
    await asyncio.to_thread(node.burn, "1Gi")

    def drawn() -> tuple[float, float]:
        text = scrape(node)
        one, two = (value(text, "aliquot_slice_energy_joules_total", slice_id=f"l-{n}.1.0") or 0.0 for n in (1, 2))
        return one, two

    await auntil(lambda: min(drawn()) > 50, "both draw")
    coordinator.desire(desired(node.uuids[0], stop=True))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_GONE)
    last = coordinator.last("l-1.1.0")
    assert last is not None
    assert last.energy_mj >= 50_000


async def test_a_card_that_counts_no_energy_has_drawn_nothing_that_is_known(
    node: Node, coordinator: Coordinator
) -> None:
    node.scenario.fail("power", pynvml.NVML_ERROR_NOT_SUPPORTED, 0)
    await grant(node, coordinator, desired(node.uuids[0]))
    await asyncio.to_thread(node.burn, "1Gi")
    name = "aliquot_slice_processes"
    await auntil(lambda: (value(scrape(node), name, slice_id="l-1.1.0") or 0) > 0, "it is looked at")
    coordinator.desire(desired(node.uuids[0], stop=True))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_GONE)
    last = coordinator.last("l-1.1.0")
    assert last is not None
    assert not last.HasField("energy_mj")
    uses = [use for delta in coordinator.deltas for device in delta.devices for use in device.slices]
    assert uses
    assert not any(use.HasField("energy_mj") for use in uses)
