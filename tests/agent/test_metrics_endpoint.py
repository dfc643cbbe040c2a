"""The node's metrics: what is, by device and slice; nothing of what has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node, auntil, closing, desired, ended_by, make_node
from tests.agent.test_enforcement_on_processes import grant

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def port(node: Node) -> int:
    lines = [json.loads(line) for line in node.log.splitlines() if '"agent started"' in line]
    return int(lines[-1]["metrics_port"])


def scrape(node: Node) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port(node)}/metrics", timeout=10) as answer:
        return bytes(answer.read()).decode()


def value(text: str, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


async def test_devices_and_slices_are_shown_as_they_are(node: Node, coordinator: Coordinator) -> None:
    uuid = node.uuids[0]
    await grant(node, coordinator, desired(uuid), desired(uuid, slice_id="l-2.1.0", lease_id="l-2"))
    await asyncio.to_thread(node.burn, "2Gi")
    stranger = await asyncio.to_thread(node.foreign_burn, "1Gi", 0)
    node.scenario.set(0, gpu_percent=40)
    node.scenario.set(0, temperature_c=61)
    node.scenario.set(0, power_mw=250_000)
    await auntil(lambda: value(scrape(node), "aliquot_device_power_watts", uuid=uuid) == 250.0, "load was sampled")
    foreign = "aliquot_device_foreign_bytes"  # which is asked for at times of its own
    await auntil(lambda: (value(scrape(node), foreign, uuid=uuid) or 0) >= GIB, "memory was sampled")
    text = await asyncio.to_thread(scrape, node)
    assert value(text, "aliquot_device_utilisation_ratio", uuid=uuid) == 0.4
    assert value(text, "aliquot_device_temperature_celsius", uuid=uuid) == 61
    assert value(text, "aliquot_device_memory_total_bytes", uuid=uuid) == 40 * GIB
    assert value(text, "aliquot_device_leases", uuid=uuid) == 2
    assert value(text, "aliquot_device_leased_bytes", uuid=uuid) == 8 * GIB
    assert value(text, "aliquot_device_reserved_share_ratio", uuid=uuid) == 0.5
    assert value(text, "aliquot_device_healthy", uuid=uuid) == 1
    assert (value(text, "aliquot_slice_observed_bytes", slice_id="l-1.1.0") or 0) >= 2 * GIB
    assert value(text, "aliquot_slice_reserved_bytes", slice_id="l-2.1.0") == 4 * GIB
    assert value(text, "aliquot_slice_share_ratio", slice_id="l-2.1.0") == 0.25
    info = {"lease_id": "l-1", "tenant": "research", "tier": "watchdog", "state": "run"}
    assert value(text, "aliquot_lease_info", **info) == 1
    assert value(text, "aliquot_agent_connected") == 1
    assert (value(text, "aliquot_agent_poll_seconds_count") or 0) > 0
    assert "DCGM_FI_DEV" not in text
    stranger.kill()


async def test_a_slices_share_of_the_time_is_shown(node: Node, coordinator: Coordinator) -> None:
    uuid = node.uuids[0]
    await grant(node, coordinator, desired(uuid), desired(uuid, slice_id="l-2.1.0", lease_id="l-2"))
    await asyncio.to_thread(node.burn, "1Gi", "--percent", "60")
    await asyncio.to_thread(node.burn, "1Gi", lease_id="l-2")
    await auntil(
        lambda: (value(scrape(node), "aliquot_slice_utilisation_ratio", slice_id="l-1.1.0") or 0) > 0.2, "it is busy"
    )
    assert value(scrape(node), "aliquot_slice_utilisation_ratio", slice_id="l-2.1.0") == 0

    def told() -> bool:
        uses = [use for delta in coordinator.deltas for entry in delta.devices for use in entry.slices]
        return any(use.slice_id == "l-1.1.0" and use.gpu_utilisation_percent > 20 for use in uses)

    await coordinator.until(told, "the coordinator heard of it")


async def test_series_of_ended_leases_vanish_and_acts_are_counted(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0], memory_bytes=2 * GIB))
    greedy = await asyncio.to_thread(node.overrun, "4Gi")
    assert await asyncio.to_thread(ended_by, greedy, signal.SIGTERM)
    assert "l-1.1.0" in scrape(node)
    coordinator.desire(desired(node.uuids[0], stop=True))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_GONE)
    text = await asyncio.to_thread(scrape, node)
    assert "l-1" not in text
    assert value(text, "aliquot_agent_enforcement_total", act="terminate") == 1
    assert value(text, "aliquot_agent_signals_total", signal="SIGTERM", outcome="sent") == 1


async def test_what_is_unknown_has_no_sample(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    await asyncio.to_thread(node.burn, "1Gi")
    node.scenario.set(0, processes_memory_unknown=1)
    await auntil(
        lambda: value(scrape(node), "aliquot_slice_observed_bytes", slice_id="l-1.1.0") is None, "it is not known"
    )
    assert value(scrape(node), "aliquot_slice_processes", slice_id="l-1.1.0") == 1


async def test_dcgm_exporters_names_are_an_opt_in(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]), flags=("--dcgm-names",))
    await asyncio.to_thread(node.burn, "2Gi")
    labels = {"UUID": node.uuids[0], "gpu": "0", "modelName": "NVIDIA A100-SXM4-40GB", "Hostname": "test-node"}
    await auntil(lambda: (value(scrape(node), "DCGM_FI_DEV_FB_USED", **labels) or 0) >= 2048, "memory in MiB")
    text = scrape(node)
    used, free = value(text, "DCGM_FI_DEV_FB_USED", **labels), value(text, "DCGM_FI_DEV_FB_FREE", **labels)
    reserved, total = value(text, "DCGM_FI_DEV_FB_RESERVED", **labels), 40 * 1024
    assert used is not None
    assert free is not None
    assert reserved is not None
    assert abs(used + free + reserved - total) <= 2
    assert value(text, "DCGM_FI_DEV_POWER_USAGE", **labels) is not None


async def test_what_performance_counters_say_is_shown_where_a_device_has_them(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    made = make_node(tmp_path / "node", ("H100-80", "A100-40"))
    with contextlib.contextmanager(closing)(made) as node:
        await grant(node, coordinator, desired(node.uuids[0]), flags=("--dcgm-names",))
        node.scenario.set(0, gpu_percent=50, memory_percent=20)
        await auntil(
            lambda: value(scrape(node), "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", UUID=node.uuids[0]) == 0.2, "it was sampled"
        )
        text = scrape(node)
        hopper, older = node.uuids
    assert value(text, "DCGM_FI_PROF_SM_ACTIVE", UUID=hopper) == 0.5
    assert value(text, "DCGM_FI_PROF_DRAM_ACTIVE", UUID=hopper) == 0.2
    assert value(text, "aliquot_device_tensor_active_ratio", uuid=hopper) == 0.2
    assert value(text, "aliquot_device_activity_ratio", uuid=hopper) == 0.5
    assert value(text, "DCGM_FI_PROF_SM_ACTIVE", UUID=older) is None
    assert (value(text, "DCGM_FI_DEV_POWER_MGMT_LIMIT", UUID=older) or 0) > 0


async def test_no_metrics_are_served_when_told_so(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, flags=("--metrics-port", "-1"))
    assert '"metrics_port":null' in node.log
