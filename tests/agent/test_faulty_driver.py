"""Drivers and devices that fail: seen, said, survived, and over when it is over."""

from __future__ import annotations

import asyncio
import signal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aliquot.simgpu.scenario import EVENT_RECOVERY_ACTION, EVENT_UNAVAILABLE
from aliquot.v1 import agent_pb2, local_pb2, types_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, SECRET, Node, auntil, desired, ended_by
from tests.agent.test_enforcement_on_processes import grant
from tests.agent.test_metrics_endpoint import scrape

ACTIVE = agent_pb2.SLICE_STATUS_ACTIVE


def device(node: Node, index: int) -> types_pb2.Device:
    return node.status().devices[index]


def xids(node: Node, index: int) -> dict[str, float]:
    """How many the agent has counted, by severity."""
    return {
        sample.labels["severity"]: sample.value
        for family in text_string_to_metric_families(scrape(node))
        for sample in family.samples
        if sample.name == "aliquot_device_xids_total" and sample.labels["index"] == str(index)
    }


async def test_a_hung_device_blinds_only_itself_and_comes_back(node: Node, coordinator: Coordinator) -> None:
    first, second = node.uuids
    await grant(node, coordinator, desired(first), desired(second, slice_id="l-2.1.0", lease_id="l-2"))
    job = await asyncio.to_thread(node.burn, "1Gi")
    node.scenario.hang("*", 0)
    await auntil(lambda: not device(node, 0).healthy, "it is seen as hung")
    assert "not come back" in device(node, 0).health_reason
    assert not device(node, 0).telemetry.HasField("memory_used_bytes"), "what was last seen is not true any more"
    assert device(node, 1).healthy
    await coordinator.until(
        lambda: any(
            entry.uuid == first and not entry.healthy for delta in coordinator.deltas for entry in delta.devices
        ),
        "the coordinator heard of it",
    )
    greedy = await asyncio.to_thread(node.overrun, "6Gi", lease_id="l-2")
    assert await asyncio.to_thread(ended_by, greedy, signal.SIGTERM), "the other device is still enforced"
    coordinator.desire(desired(first, slice_id="l-3.1.0", lease_id="l-3"))
    report = await coordinator.until_status("l-3.1.0", agent_pb2.SLICE_STATUS_FAILED)
    assert "not come back" in report.detail, "no new slices where the limit can't be set"
    node.scenario.unhang("*", 0)
    await auntil(lambda: device(node, 0).healthy, "it is healthy again", seconds=60)
    assert job.poll() is None
    piece = node.slice_of("l-1.1.0")
    assert piece is not None
    assert piece.observed_bytes > GIB


async def test_a_lost_device_is_unhealthy_and_its_slices_are_kept(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    job = await asyncio.to_thread(node.burn, "1Gi")
    node.scenario.lose(0)
    await auntil(lambda: not device(node, 0).healthy, "it is seen as lost")
    assert node.slice_of("l-1.1.0") is not None
    assert job.poll() is None
    node.scenario.restore(0)
    await auntil(lambda: device(node, 0).healthy, "it is healthy again", seconds=60)


async def test_nothing_is_attached_to_a_lease_whose_device_is_gone(
    node: Node, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was unplugged or divided: a program would see no device, or fewer than were leased."""
    monkeypatch.setenv("ALIQUOT_AGENT_POLL_DISCOVERY", "1s")
    await grant(node, coordinator)
    request = local_pb2.LocalRequest(
        attach=local_pb2.AttachRequest(lease_id="l-1", secret=SECRET, pid=node.sleeper().pid)
    )

    async def until_refused() -> str:
        while True:
            answer = await asyncio.to_thread(node.ask, request)
            if not answer.HasField("attach"):
                return answer.error.reason
            assert answer.attach.environment["CUDA_VISIBLE_DEVICES"] == node.uuids[0]

    asking = [asyncio.create_task(until_refused()) for _ in range(4)]
    node.scenario.set_mig_mode(0, enabled=True)
    assert {await each for each in asking} <= {"NOT_ACTIVE", "LEASE_NOT_HERE"}


async def test_xids_of_programs_are_noted_and_those_of_devices_take_them_out(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator)
    node.scenario.raise_xid(1, 31)
    await auntil(lambda: "XID 31" in node.log, "it is noted")
    assert device(node, 1).healthy
    node.scenario.raise_xid(1, 95)
    await auntil(lambda: not device(node, 1).healthy, "it is taken out of service")
    assert "XID 95" in device(node, 1).health_reason
    assert device(node, 0).healthy
    await auntil(lambda: device(node, 1).healthy, "the driver asks for nothing any more", seconds=60)


async def test_a_storm_of_one_programs_errors_hides_nothing_and_takes_no_device(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator)
    for number in range(250):  # as many as the stand-in's ring holds
        node.scenario.raise_xid(1, 31 if number % 2 else 45)
    node.scenario.raise_xid(0, 95)
    await auntil(lambda: not device(node, 0).healthy, "another device's fault is heard")
    assert device(node, 1).healthy
    assert node.log.count("reported XID 31") == 1, "a storm is a line in the log"
    assert xids(node, 1) == {"fatal": 0, "degraded": 0, "program": 125, "none": 125, "unknown": 0}
    assert xids(node, 0)["fatal"] == 1


@pytest.mark.parametrize("event", [EVENT_RECOVERY_ACTION, EVENT_UNAVAILABLE], ids=["recovery action", "unavailable"])
async def test_what_the_driver_reports_by_itself_is_heard_at_once(
    node: Node, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, event: int
) -> None:
    """Health is asked so rarely here that only the event can have told."""
    monkeypatch.setenv("ALIQUOT_AGENT_POLL_HEALTH", "10m")
    await grant(node, coordinator)
    await auntil(lambda: device(node, 0).telemetry.HasField("temperature_c"), "it has been polled")
    if event == EVENT_RECOVERY_ACTION:
        node.scenario.set_recovery_action(0, 1)
    else:
        node.scenario.raise_event(0, event)
    await auntil(lambda: not device(node, 0).healthy, "it is taken out of service")
    assert device(node, 1).healthy


async def test_the_drivers_recovery_action_is_followed(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator)
    node.scenario.set_recovery_action(0, 1)
    await auntil(lambda: not device(node, 0).healthy, "it is taken out of service")
    assert "reset" in device(node, 0).health_reason
    node.scenario.reset(0)
    await auntil(lambda: device(node, 0).healthy, "it is healthy again", seconds=60)


async def test_a_driver_without_process_lists_offers_no_watchdog_and_a_lost_one_is_told(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    not_supported = 3
    node.scenario.fail("processes", not_supported)
    await auntil(lambda: types_pb2.TIER_WATCHDOG not in device(node, 0).tiers, "the tier is gone")
    report = await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_PENDING)
    assert report.tier == types_pb2.TIER_UNSPECIFIED
    piece = node.slice_of("l-1.1.0")
    assert piece is not None, "what may still run is not said to be gone"
    assert not piece.HasField("observed_bytes"), "what can't be seen is not nothing"
    coordinator.desire(desired(node.uuids[1], slice_id="l-2.1.0", lease_id="l-2"))
    refused = await coordinator.until_status("l-2.1.0", agent_pb2.SLICE_STATUS_FAILED)
    assert refused.reason == "TIER_UNAVAILABLE"


async def test_foreign_memory_is_told_and_goes_away(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator)
    uuid = node.uuids[1]
    stranger = await asyncio.to_thread(node.foreign_burn, "3Gi", 1)

    def foreign() -> int:
        told = [entry for delta in coordinator.deltas for entry in delta.devices if entry.uuid == uuid]
        return told[-1].foreign_bytes if told else 0

    await coordinator.until(lambda: foreign() >= 3 * GIB, "the coordinator heard of it")
    stranger.kill()
    stranger.wait()
    await coordinator.until(lambda: foreign() == 0, "and that it is free again")


async def test_a_foreign_process_with_unknown_memory_is_not_taken_for_nothing(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator)
    await asyncio.to_thread(node.foreign_burn, "3Gi", 0)
    node.scenario.set(0, processes_memory_unknown=1)
    await auntil(lambda: device(node, 0).foreign_bytes >= 3 * GIB, "estimated from what is used")
