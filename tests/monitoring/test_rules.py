"""Every rule does what it says: promtool evaluates each on series under which it must fire, and must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.monitoring.cases import CASES
from tests.monitoring.programs import promtool
from tools.monitoring.__main__ import FOLDER
from tools.monitoring.rules import RECORDED, alerts

RULES = FOLDER / "rules.yaml"


def test_the_rules_are_sound() -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == {alert.name for alert in alerts()}


def _rules(name: str) -> dict[str, Any]:
    """This alert alone, with what is recorded for it. promtool compares annotations too, so it has none here: their
    texts are filled in on a running pool.
    """
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    (alert,) = (rule for group in groups for rule in group["rules"] if rule.get("alert") == name)
    del alert["annotations"]
    needed = [
        rule for group in groups for rule in group["rules"] if "record" in rule and rule["record"] in alert["expr"]
    ]
    return {"groups": [{"name": name, "interval": "30s", "rules": [*needed, alert]}]}


def _test(name: str, *, fires: bool) -> dict[str, Any]:
    case = CASES[name]
    (alert,) = (each for each in alerts() if each.name == name)
    series = case.wrong if fires else case.right
    return {
        "name": f"{name}, {'wrong' if fires else 'right'}",
        "interval": "30s",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": case.at,
                "alertname": name,
                "exp_alerts": [{"exp_labels": {**case.labels, "severity": alert.severity}}] if fires else [],
            }
        ],
    }


def test_every_alert_fires_when_it_must_and_only_then(tmp_path: Path) -> None:
    """All in one run of promtool, which says of each that fails what it expected."""
    files = []
    for name in CASES:
        (tmp_path / f"{name}.rules.yaml").write_text(yaml.safe_dump(_rules(name)))
        tests = [_test(name, fires=True), _test(name, fires=False)]
        stated = {"rule_files": [f"{name}.rules.yaml"], "evaluation_interval": "30s", "tests": tests}
        files.append(tmp_path / f"{name}.test.yaml")
        files[-1].write_text(yaml.safe_dump(stated))
    assert "SUCCESS" in promtool("test", "rules", *map(str, files))


def test_recorded_series(tmp_path: Path) -> None:
    slice_of = 'node="n", slice_id="l-1.1.0", lease_id="l-1"'
    series = {
        'aliquot_leased_share_milli{pool="p", model="m"}': "500x20",
        'aliquot_capacity_share_milli{pool="p", model="m"}': "2000x20",
        'aliquot_leased_memory_bytes{pool="p", model="m"}': "10x20",
        'aliquot_capacity_memory_bytes{pool="p", model="m"}': "40x20",
        f'aliquot_slice_utilisation_ratio{{{slice_of}, uuid="u"}}': "0.3x20",
        f'aliquot_lease_info{{{slice_of}, uuid="u", tenant="lab", queue="", member="0", tier="mig", state="run"}}': (
            "1x20"
        ),
        'aliquot_tenant_share_milli{tenant="lab", queue="a"}': "300x20",
        'aliquot_tenant_share_milli{tenant="lab", queue="b"}': "200x20",
        'aliquot_jobs_total{tenant="lab", queue="", outcome="SUCCEEDED"}': "0+3x20",
        'aliquot_jobs_total{tenant="lab", queue="", outcome="FAILED"}': "0+1x20",
        'aliquot_jobs_total{tenant="lab", queue="", outcome="UNKNOWN"}': "0+9x20",
    }
    # A pod with two parts, of which one goes beyond its share into what its neighbour leaves; the neighbour, idle; and
    # a lease of which nothing is measured.
    for slice_id, lease_id, share, used in (("1", "own", 0.25, 0.9), ("2", "own", 0.25, 0.15), ("3", "idle", 0.5, 0)):
        of = f'node="k", uuid="c", lease_id="{lease_id}", slice_id="{slice_id}"'
        series[f"aliquot_slice_share_ratio{{{of}}}"] = f"{share}x20"
        series[f"aliquot_slice_utilisation_ratio{{{of}}}"] = f"{used}x20"
    own = 'node="k", uuid="c", lease_id="own", slice_id="1"'
    series[f"aliquot_slice_reserved_bytes{{{own}}}"] = "40x20"
    series[f"aliquot_slice_observed_bytes{{{own}}}"] = "10x20"
    series['aliquot_slice_share_ratio{node="k", uuid="c", lease_id="unknown", slice_id="4"}'] = "0.5x20"
    for pod, lease_id in (("web-0", "own"), ("web-1", "unknown"), ("web-2", "")):
        named = f'namespace="shop", pod="{pod}", job="kube-state-metrics"'
        series[f'kube_pod_annotations{{{named}, annotation_aliquot_dev_lease_id="{lease_id}"}}'] = "1x20"
    for name in ("queue_wait", "grant_to_active", "guaranteed_start", "decision"):
        series |= {f'aliquot_{name}_seconds_bucket{{le="{bound}"}}': "0+1x20" for bound in ("1.0", "+Inf")}
    expected = {
        "aliquot:leased_share:ratio": ('{pool="p", model="m"}', 0.25),
        "aliquot:leased_memory:ratio": ('{pool="p", model="m"}', 0.25),
        "aliquot:tenant_used_devices:sum": ('{tenant="lab"}', 0.3),
        "aliquot:tenant_held_devices:sum": ('{tenant="lab"}', 0.5),
        "aliquot:job_completion:ratio": ('{tenant="lab"}', 0.75),
        "aliquot:queue_wait_seconds:p95": ("", 0.95),
        "aliquot:grant_to_active_seconds:p95": ("", 0.95),
        "aliquot:guaranteed_start_seconds:p95": ("", 0.95),
        "aliquot:decision_seconds:p95": ("", 0.95),
    }
    pod = '{namespace="shop", pod="web-0"}'
    expected |= {
        'aliquot:lease_gpu_usage:ratio{lease_id="own"}': ('{lease_id="own"}', 0.8),
        'aliquot:lease_gpu_usage:ratio{lease_id="idle"}': ('{lease_id="idle"}', 0),
        "aliquot:lease_gpu_memory_usage:ratio": ('{lease_id="own"}', 0.25),
        "container_gpu_usage": (pod, 0.8),
        "container_gpu_memory_usage": (pod, 0.25),
    }
    assert {name.partition("{")[0] for name in expected} == {name for name, _ in RECORDED}
    stated = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": key, "values": values} for key, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f"round({name}, 0.01)",
                        "eval_time": "8m",
                        "exp_samples": [{"labels": labels or "{}", "value": value}],
                    }
                    for name, (labels, value) in expected.items()
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(stated))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "test.yaml"))
