"""Every panel shows something on a pool at work, by a real Prometheus that reads real programs."""

from __future__ import annotations

import math
import urllib.request

from tests.monitoring.programs import promtool_reads
from tests.monitoring.site import Site
from tests.polling import eventually
from tools.monitoring.dashboards import BOARDS, panels
from tools.monitoring.panels import filled
from tools.monitoring.rules import RECORDED, alerts


def _missing(running: Site, wanted: dict[str, str]) -> dict[str, str]:
    """What finds nothing, or only what is no number."""
    return {
        name: expr
        for name, expr in wanted.items()
        if not any(not math.isnan(value) for _, value in running.prometheus.series(expr))
    }


def test_every_panel_and_every_recorded_series_shows_something(running: Site) -> None:
    wanted = {
        f"{board.title} / {panel.title} / {query.legend}": filled(query.expr, "20s")
        for board, panel in panels()
        for query in panel.queries
    }
    # Which pods have leases only kube-state-metrics tells, and there is none here.
    wanted |= {name: name for name, expr in RECORDED if "kube_" not in expr}
    last: dict[str, str] = {}

    def everything_is_there() -> bool:
        nonlocal last
        running.churn()
        last = _missing(running, last or wanted)
        return not last

    try:
        eventually(everything_is_there)
    except AssertionError:
        raise AssertionError(f"nothing is shown by {last}") from None


def test_variables_have_values(running: Site) -> None:
    for board in BOARDS:
        for variable in board.variables:
            series, label = variable.query.removeprefix("label_values(").removesuffix(")").split(", ")
            assert running.prometheus.ask(f"label/{label}/values", **{"match[]": series}), variable


def test_rules_are_evaluated_without_errors(running: Site) -> None:
    def rules() -> list[dict[str, str]]:
        return [rule for group in running.prometheus.ask("rules")["groups"] for rule in group["rules"]]

    eventually(lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert {rule["name"]: rule.get("lastError") for rule in rules() if rule["health"] != "ok"} == {}
    assert {rule["name"] for rule in rules() if rule["type"] == "alerting"} == {alert.name for alert in alerts()}


def test_exemplars_name_the_trace_of_a_lease(running: Site) -> None:
    def found() -> dict[str, str]:
        running.churn()
        histograms = ("aliquot_grant_to_active_seconds_bucket", "aliquot_queue_wait_seconds_bucket")
        told = [running.prometheus.ask("query_exemplars", query=name, start="0", end="9999999999")
                for name in histograms]  # fmt: skip
        labels: dict[str, str] = told[0][0]["exemplars"][-1]["labels"] if all(told) else {}
        return labels

    labels = eventually(found)
    assert labels["lease_id"].startswith("l-")
    assert len(labels["trace_id"]) == 32


def test_what_is_served_is_what_prometheus_reads_without_complaint(running: Site) -> None:
    addresses = [running.local.metrics, *(node.metrics for node in running.local.nodes)]
    for address in addresses:
        url = address if address.startswith("http") else f"http://{address}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            promtool_reads(answer.read())
        request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().endswith(b"# EOF\n")
