"""docs/metrics.md names every metric that there is, with its kind and labels, and none that there is not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

from prometheus_client.core import Metric

from aliquot.agent.core.figures import FIGURES
from aliquot.agent.core.model import Holder
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.metrics.endpoint import Metrics as AgentMetrics
from aliquot.agent.metrics.node import NodeCollector, ServedCollector
from aliquot.agent.state import DeviceState, NodeState
from aliquot.common.gauges import Own
from aliquot.common.validity import Certificates
from aliquot.console.monitor.app import Scores
from aliquot.console.monitor.watching import Settings, Watching
from tests.coordinator.pool import running, settings_for

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `(aliquot_[a-z_]+)(?:\{([a-z_, ]+)\})?` \| ([a-z]+) \|")


def documented(section: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name -> kind and labels, of one section of the page."""
    text = PAGE.read_text(encoding="utf-8")
    part = re.split(r"^## ", text.split(f"\n## {section}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [match for line in part.splitlines() if (match := _ROW.match(line))]
    found = {row[1]: (row[3], frozenset((row[2] or "").replace(",", " ").split())) for row in rows}
    assert len(found) == len(rows), "a name stands there twice"
    return found


def measured(metrics: Iterable[Metric]) -> dict[str, str]:
    return {metric.name + ("_total" if metric.type == "counter" else ""): metric.type for metric in metrics}


def labels_in(metrics: Iterable[Metric]) -> dict[str, frozenset[str]]:
    """Of all families that say them, whether they have samples now or not."""
    return {
        metric.name + ("_total" if metric.type == "counter" else ""): frozenset(metric._labelnames)
        for metric in metrics
        if hasattr(metric, "_labelnames")
    }


def compare(section: str, metrics: list[Metric]) -> None:
    said = documented(section)
    assert {name: kind for name, (kind, _) in said.items()} == measured(metrics)
    for name, labels in labels_in(metrics).items():
        assert said[name][1] == labels, name


async def test_the_page_has_the_coordinators_metrics() -> None:
    async with running(settings_for(forecast=True)) as pool:
        await pool.declare(1)
        await pool.allocate("0.5")
        coordinator = pool.coordinator
        coordinator.metrics.resized["grown"] += 1
        coordinator.metrics.refused["NEVER_FITS"] += 1
        coordinator.metrics.ended["RELEASED"] += 1
        coordinator.metrics.agent_messages["delta"] += 1
        compare("Coordinator", [each for each in coordinator.collect() if not each.name.startswith("process_")])


def test_the_page_has_the_agents_metrics() -> None:
    state = NodeState("n", "node", "boot")
    info = DeviceInfo("GPU-1", 0, "A100", "A100-40", "nvidia", 1 << 30, 0)
    state.devices["GPU-1"] = DeviceState(info)
    watchdog, signaller = Mock(acts={}, breaches={}), Mock(outcomes={})
    metrics = AgentMetrics()
    holder = Holder("l-1", 1, 0)
    metrics.collectors = lambda: (
        NodeCollector(state, watchdog, signaller, lambda: 0, lambda: 0, Certificates(lambda: 0)),
        ServedCollector(lambda: "node", lambda: {holder: dict.fromkeys(FIGURES, 1)}),
    )
    compare("Agent", list(metrics.collect()))


def test_the_page_has_the_consoles_metrics() -> None:
    compare("Console", [each for each in Own(None).collect() if not each.name.startswith("process_")])


def test_the_page_has_the_monitors_metrics() -> None:
    compare("Monitor", list(Scores(Watching(Settings())).collect()))
