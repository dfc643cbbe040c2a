"""Recording rules, alerts and service levels, in the form that Prometheus reads.

Nothing here is newer than Prometheus 2.42. Severities: `critical` wakes somebody, `warning` is for the working day,
`info` is looked at once a week. Each alert has a section in the runbook, which a test holds it to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

RUNBOOK = "docs/operations.md"
INTERVAL = "30s"
_HEAD = "# Written by `python -m tools.monitoring`: change tools/monitoring/rules.py, not this file.\n"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert: what must hold for how long, and what it tells people."""

    name: str
    expr: str
    hold: str
    severity: str
    summary: str
    description: str

    def document(self) -> dict[str, Any]:
        """As Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook": f"{RUNBOOK}#{self.name.lower()}",
            },
        }


@dataclass(frozen=True, slots=True)
class Level:
    """A service level: the part of `all` that is bad is to stay below `budget`."""

    name: str
    """As in the names of its series and alerts."""
    alert: str
    bad: str
    """Rates over `$window`."""
    all: str
    budget: float
    least: float
    """So many events must have happened in the longer window, or nothing is said."""
    text: str


LEVELS = (
    Level(
        "grant_to_active",
        "AliquotGrantsSlow",
        'sum(increase(aliquot_grant_to_active_seconds_count[$window]))'
        ' - sum(increase(aliquot_grant_to_active_seconds_bucket{le="30.0"}[$window]))',
        "sum(increase(aliquot_grant_to_active_seconds_count[$window]))",
        0.01,
        20,
        "99 % of grants are active within 30 s",
    ),
    Level(
        "guaranteed_start",
        "AliquotGuaranteesLate",
        'sum(increase(aliquot_guaranteed_start_seconds_count[$window]))'
        ' - sum(increase(aliquot_guaranteed_start_seconds_bucket{le="60.0"}[$window]))',
        "sum(increase(aliquot_guaranteed_start_seconds_count[$window]))",
        0.01,
        20,
        "99 % of requests that a guarantee covers are active within a minute",
    ),
    Level(
        "calls_answered",
        "AliquotCallsFail",
        'sum(increase(aliquot_requests_refused_total{reason=~"INTERNAL|JOURNAL_UNAVAILABLE|OVERLOADED"}[$window]))'
        " or vector(0)",
        "sum(increase(aliquot_calls_total[$window]))",
        0.001,
        100,
        "99.9 % of calls are answered",
    ),
)  # fmt: skip

_PAGE = ((14.4, "1h", "5m"), (6.0, "6h", "30m"))
_TICKET = ((3.0, "1d", "2h"), (1.0, "3d", "6h"))
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")

_PODS = (
    'label_replace(kube_pod_annotations{annotation_aliquot_dev_lease_id!=""},'
    ' "lease_id", "$1", "annotation_aliquot_dev_lease_id", "(.+)")'
)
"""Which pod has which lease, as kube-state-metrics tells it where it may show that annotation."""


def _of_lease(used: str, held: str) -> str:
    """What of its own part a lease uses, at most all: beyond it a lease has what its neighbours leave, and who scales
    by that would follow the neighbours. What is not known is left out, not zero.
    """
    return f"sum by (lease_id) ({held} * clamp_max({used} / {held}, 1)) / sum by (lease_id) ({held} and {used})"


def _of_pods(lease: str) -> str:
    return f"max by (namespace, pod) ({lease} * on (lease_id) group_right () {_PODS})"


RECORDED = (
    ("aliquot:lease_gpu_usage:ratio", _of_lease("aliquot_slice_utilisation_ratio", "aliquot_slice_share_ratio")),
    (
        "aliquot:lease_gpu_memory_usage:ratio",
        _of_lease("aliquot_slice_observed_bytes", "aliquot_slice_reserved_bytes"),
    ),
    # By these names autoscalers ask for them (docs/autoscaling.md).
    ("container_gpu_usage", _of_pods("aliquot:lease_gpu_usage:ratio")),
    ("container_gpu_memory_usage", _of_pods("aliquot:lease_gpu_memory_usage:ratio")),
    (
        "aliquot:leased_share:ratio",
        "sum by (pool, model) (aliquot_leased_share_milli) / sum by (pool, model) (aliquot_capacity_share_milli)",
    ),
    (
        "aliquot:leased_memory:ratio",
        "sum by (pool, model) (aliquot_leased_memory_bytes) / sum by (pool, model) (aliquot_capacity_memory_bytes)",
    ),
    (
        "aliquot:tenant_used_devices:sum",
        (
            "sum by (tenant) (aliquot_slice_utilisation_ratio * on (node, slice_id) group_left (tenant)"
            " max by (node, slice_id, tenant) (aliquot_lease_info))"
        ),
    ),
    ("aliquot:tenant_held_devices:sum", "sum by (tenant) (aliquot_tenant_share_milli) / 1000"),
    (
        "aliquot:job_completion:ratio",
        (
            'sum by (tenant) (increase(aliquot_jobs_total{outcome="SUCCEEDED"}[1h]))'
            ' / (sum by (tenant) (increase(aliquot_jobs_total{outcome!="UNKNOWN"}[1h])) > 0)'
        ),
    ),
    (
        "aliquot:queue_wait_seconds:p95",
        "histogram_quantile(0.95, sum by (le) (rate(aliquot_queue_wait_seconds_bucket[5m])))",
    ),
    (
        "aliquot:grant_to_active_seconds:p95",
        "histogram_quantile(0.95, sum by (le) (rate(aliquot_grant_to_active_seconds_bucket[5m])))",
    ),
    (
        "aliquot:guaranteed_start_seconds:p95",
        "histogram_quantile(0.95, sum by (le) (rate(aliquot_guaranteed_start_seconds_bucket[5m])))",
    ),
    (
        "aliquot:decision_seconds:p95",
        "histogram_quantile(0.95, sum by (le) (rate(aliquot_decision_seconds_bucket[5m])))",
    ),
)

_DEVICE = "{{ $labels.node }} device {{ $labels.index }} ({{ $labels.model }}, {{ $labels.uuid }})"
_BUSY = "avg_over_time(aliquot_device_utilisation_ratio[5m])"
_MEMORY = (
    "aliquot_device_memory_used_bytes / (aliquot_device_memory_total_bytes - aliquot_device_memory_reserved_bytes)"
)

DEVICE_ALERTS = (
    Alert("GPUHighUtilization", f"{_BUSY} > 0.9", "5m", "info", f"{_DEVICE} is busy",
          "A kernel has run in {{ $value | humanizePercentage }} of the last five minutes. That is what it is for."),
    Alert("GPULowUtilization",
          "avg_over_time(aliquot_device_utilisation_ratio[30m]) < 0.1 and aliquot_device_leases > 0", "30m", "info",
          f"{_DEVICE} is leased and does little",
          "Leases hold it, and a kernel ran in {{ $value | humanizePercentage }} of the last half hour."),
    Alert("GPUMemoryHigh", f"{_MEMORY} > 0.9", "5m", "warning", f"{_DEVICE} has little memory left",
          "{{ $value | humanizePercentage }} is used."),
    Alert("GPUMemoryFull", f"{_MEMORY} > 0.95", "2m", "warning", f"{_DEVICE} has no memory left",
          "{{ $value | humanizePercentage }} is used: what asks for more fails."),
    Alert("GPUHighTemperature", "aliquot_device_temperature_celsius > 80", "5m", "warning", f"{_DEVICE} is hot",
          "It has {{ $value }} degrees."),
    Alert("GPUCriticalTemperature", "aliquot_device_temperature_celsius > 90", "1m", "critical",
          f"{_DEVICE} is too hot", "It has {{ $value }} degrees: it slows down, and may switch itself off."),
    Alert("AliquotDeviceUnwell", "aliquot_device_healthy == 0", "10m", "warning", f"{_DEVICE} takes no leases",
          "Its agent has not been content with it for ten minutes."),
    Alert("AliquotXidFatal", 'increase(aliquot_device_xids_total{severity="fatal"}[10m]) > 0', "0m", "warning",
          f"{_DEVICE} reported a fatal XID", "{{ $value | humanize }} within ten minutes."),
    Alert("AliquotForeignMemory", "aliquot_device_foreign_bytes > 1073741824", "15m", "warning",
          f"{_DEVICE} is used outside any lease", "{{ $value | humanize1024 }}B are covered by no slice."),
    Alert("AliquotLimitPassed",
          'increase(aliquot_agent_limit_breaches_total{tier!="watchdog"}[10m]) > 0', "0m", "warning",
          "{{ $labels.node }}: a slice passed a limit that its tier {{ $labels.tier }} denies",
          "{{ $value | humanize }} times within ten minutes."),
)  # fmt: skip

HEALTH_ALERTS = (
    Alert("AliquotCardNeedsPerson", 'sum(aliquot_cards_unwell{state="SERVICE"}) > 0', "0m", "warning",
          "{{ $value }} cards wait for a person", "No repair that the pool may do has helped them."),
    Alert("AliquotIncidentOld",
          "time() - (aliquot_incident_oldest_seconds > 0) > 7200", "5m", "warning",
          "a card has been out of service for {{ $value | humanizeDuration }}",
          "Repairs are over within minutes where the pool may do them."),
    Alert("AliquotManyCardsOut", "sum(aliquot_cards_out) > 1 and sum(aliquot_cards_out) / sum(aliquot_devices) > 0.1",
          "5m", "critical", "{{ $value }} cards are out of service", "More than a tenth of the pool."),
    Alert("AliquotSlicesUnknown", "max by (node) (aliquot_slices_unknown) > 0", "5m", "warning",
          "{{ $labels.node }} holds {{ $value }} slices that the books do not know",
          "They are quarantined: they run on, and what they hold is given to nobody."),
)  # fmt: skip

POOL_ALERTS = (
    Alert("SchedulerQueueHigh", "sum(aliquot_queue_depth) > 100", "5m", "warning", "{{ $value }} requests wait",
          "More than a hundred have waited for five minutes."),
    Alert("SchedulingLatencyHigh", "aliquot:grant_to_active_seconds:p95 > 10", "5m", "warning",
          "grants take {{ $value | humanizeDuration }} to become active", "The 95th percentile of five minutes."),
    Alert("GPUSchedulingLatencyHigh", "aliquot:decision_seconds:p95 > 0.1", "5m", "warning",
          "deciding takes {{ $value | humanizeDuration }}", "The 95th percentile of five minutes."),
    Alert("AliquotHeldForNothing",
          'sum(aliquot_use_share_milli{use=~"HELD|IDLE|GHOST"}) / (sum(aliquot_use_share_milli) > 0) > 0.3', "2h",
          "info", "{{ $value | humanizePercentage }} of what is leased is not used", "For two hours."),
    Alert("AliquotLeaseHung", 'sum(aliquot_leases_by_use{use="HUNG"}) > 0', "15m", "warning",
          "{{ $value }} leases hang", "Busy without a pause at a power at which nothing is computed."),
    Alert("AliquotNodeOrderLate",
          'time() - (max by (shape, way) (aliquot_node_order_due_seconds) > 0) > 600', "5m", "warning",
          "an order of shape {{ $labels.shape }} ({{ $labels.way }}) is {{ $value | humanizeDuration }} late",
          "The node has not come, or has not gone."),
    Alert("AliquotNodeOrdersFail",
          'sum by (shape) (increase(aliquot_node_orders_total{state="FAILED"}[30m])) >= 3', "0m", "warning",
          "{{ $value | humanize }} orders of shape {{ $labels.shape }} have failed", "Within half an hour."),
    Alert("AliquotPoolFull", "aliquot:leased_share:ratio > 0.95 and on () sum(aliquot_queue_depth) > 0", "1h", "info",
          "{{ $labels.pool }} {{ $labels.model }} is full and requests wait",
          "{{ $value | humanizePercentage }} has been leased for an hour."),
    Alert("AliquotPoolUseLow", "aliquot:leased_share:ratio < 0.2", "1d", "info",
          "{{ $labels.pool }} {{ $labels.model }} is hardly leased",
          "{{ $value | humanizePercentage }} now, and less than a fifth for a day."),
    Alert("AliquotCardHardlyUsed", "aliquot_watch_use_score < 20", "2h", "info",
          "{{ $labels.namespace }}/{{ $labels.pod }} hardly uses {{ $labels.gpu_id }}",
          "Its score, as `aliquot watch-use` reckons, is {{ $value | humanize }} of 100, and below 20 for two hours."),
    Alert("HPAScalingFrequent", "changes(kube_horizontalpodautoscaler_status_desired_replicas[10m]) > 5", "5m",
          "warning", "autoscaler {{ $labels.namespace }}/{{ $labels.horizontalpodautoscaler }} goes back and forth",
          "{{ $value }} changes within ten minutes."),
)  # fmt: skip

TENANT_ALERTS = (
    Alert("AliquotQueueWaitLong",
          "time() - min by (tenant, queue) (aliquot_tenant_waiting_since_seconds) > 3600", "1m", "warning",
          "a request of {{ $labels.tenant }} has waited for {{ $value | humanizeDuration }}",
          "Longer than an hour{{ if $labels.queue }}, in queue {{ $labels.queue }}{{ end }}."),
    Alert("AliquotBudgetNearlyUsed", "max by (tenant) (aliquot_budget_used_ratio) >= 0.8 < 1", "0m", "warning",
          "{{ $labels.tenant }} has used {{ $value | humanizePercentage }} of its budget",
          "When it is used up nothing new is granted to it until the next period."),
    Alert("AliquotBudgetUsed", "max by (tenant) (aliquot_budget_used_ratio) >= 1", "0m", "warning",
          "{{ $labels.tenant }} has used up its budget",
          "Nothing new is granted to it until the next period; what runs goes on."),
    Alert("AliquotBalanceSpent", "max by (tenant) (aliquot_tenant_balance_micro) < 0", "0m", "warning",
          "{{ $labels.tenant }} has used more than it has paid", "Nothing is refused for it: whoever sells decides."),
    Alert("AliquotJobsFail",
          'sum by (tenant) (increase(aliquot_jobs_total{outcome="FAILED"}[1h])) > 10'
          ' and on (tenant) sum by (tenant) (increase(aliquot_jobs_total{outcome="FAILED"}[1h]))'
          ' > on (tenant) sum by (tenant) (increase(aliquot_jobs_total{outcome="SUCCEEDED"}[1h]))', "5m", "info",
          "{{ $value | humanize }} jobs of {{ $labels.tenant }} have failed", "Within an hour, and fewer succeeded."),
)  # fmt: skip

CONTROL_ALERTS = (
    Alert("AliquotNoLeader", "(sum(aliquot_leading) or vector(0)) != 1", "1m", "critical",
          "{{ $value }} coordinators lead", "One does, always; leases that run are not touched meanwhile."),
    Alert("AliquotNotGranting", "sum(aliquot_granting) < 1 and sum(aliquot_leading) >= 1", "1m", "critical",
          "a coordinator leads and grants nothing", "Its journal can't be written, or writes take too long."),
    Alert("AliquotClocksApart", "abs(aliquot_clock_ahead_seconds) > 30", "1m", "warning",
          "on {{ $labels.instance }}, the clock of {{ $labels.clock }} is {{ $value }} s from that of {{ $labels.of }}",
          "Nobody leads by a wrong clock, and a pool's time is held back, or passes slowly, until it is right."),
    Alert("AliquotCommitFailures", "increase(aliquot_commit_failures_total[10m]) > 0", "0m", "warning",
          "{{ $labels.instance }} could not write its journal",
          "{{ $value | humanize }} groups of facts within ten minutes."),
    Alert("AliquotTargetDown", 'up{job=~".*aliquot.*"} == 0', "5m", "critical",
          "{{ $labels.job }} at {{ $labels.instance }} does not answer", "Its metrics can't be read."),
    Alert("AliquotNodeSilent", 'sum(aliquot_nodes{state=~"SUSPECT|LOST"}) > 0', "5m", "warning",
          "{{ $value }} nodes are not heard", "Nothing new is placed there; what runs there goes on."),
    Alert("AliquotAgentAlone", "aliquot_agent_connected == 0", "5m", "warning",
          "the agent of {{ $labels.node }} reaches no coordinator", "It keeps what it has and takes nothing new."),
    Alert("AliquotAgentRestless", "increase(aliquot_agent_sessions_total[30m]) > 6", "0m", "warning",
          "the agent of {{ $labels.node }} connects again and again",
          "{{ $value | humanize }} times within half an hour: grants there wait for each reconciliation."),
    Alert("AliquotLeaderRestless", "changes(max(aliquot_leader_epoch)[1h:1m]) > 4", "0m", "warning",
          "the leader changes again and again", "{{ $value }} times within an hour, with no grants for seconds each."),
    Alert("AliquotSetAside", "sum(aliquot_set_aside) > 0", "0m", "warning", "{{ $value }} items are set aside",
          "Deciding them failed again and again, by a defect; everything else goes on."),
    Alert("AliquotLoopLag", "max by (instance) (aliquot_loop_lag_seconds) > 0.5", "5m", "warning",
          "{{ $labels.instance }} is {{ $value | humanizeDuration }} late", "Its event loop has too much to do."),
    Alert("AliquotDutyFails", "aliquot_duty == 0", "10m", "warning",
          "{{ $labels.instance }}{{ if $labels.node }} ({{ $labels.node }}){{ end }} fails: {{ $labels.duty }}",
          "Its log, and `aliquot health` or `aliquot nodes NODE`, say why."),
    Alert("AliquotCertificateDue",
          "aliquot_certificate_due_seconds < time() and aliquot_certificate_ends_seconds > time()", "1h", "warning",
          "the certificate ({{ $labels.of }}) of {{ $labels.instance }} has not been renewed",
          "Two weeks before its end, or with a quarter of its life left, it was to be another one."),
    Alert("AliquotCertificateEnded", "aliquot_certificate_ends_seconds < time()", "0m", "critical",
          "the certificate ({{ $labels.of }}) of {{ $labels.instance }} has ended", "Whoever checks it refuses it."),
    Alert("AliquotDenials", "sum(increase(aliquot_denied_total[10m])) > 100", "0m", "warning",
          "{{ $value | humanize }} calls were refused for who made them", "Within ten minutes."),
)  # fmt: skip


def level_alerts(level: Level) -> list[Alert]:
    """Two for each level: one that wakes somebody, one for the working day."""
    made = []
    for word, severity, windows in (("Fast", "critical", _PAGE), ("Slowly", "warning", _TICKET)):
        expr = " or ".join(
            f"(aliquot:{level.name}:errors_{long} > {factor * level.budget:.6g}"
            f" and aliquot:{level.name}:errors_{short} > {factor * level.budget:.6g}"
            f" and aliquot:{level.name}:events_{long} >= {level.least:g})"
            for factor, long, short in windows
        )
        made.append(
            Alert(
                f"{level.alert}{word}", expr, "2m", severity,
                "the error budget burns: {{ $value | humanizePercentage }} of events are bad",
                f"The level is that {level.text}.",
            )
        )  # fmt: skip
    return made


def alerts() -> list[Alert]:
    """All of them."""
    of_levels = [alert for level in LEVELS for alert in level_alerts(level)]
    return [*DEVICE_ALERTS, *HEALTH_ALERTS, *POOL_ALERTS, *TENANT_ALERTS, *CONTROL_ALERTS, *of_levels]


def document() -> dict[str, Any]:
    """The file of rules."""
    recorded = [{"record": name, "expr": expr} for name, expr in RECORDED]
    of_levels = []
    for level in LEVELS:
        for window in WINDOWS:
            bad, whole = (text.replace("$window", window) for text in (level.bad, level.all))
            errors = f"({bad}) / ({whole} > 0)"
            of_levels.append({"record": f"aliquot:{level.name}:errors_{window}", "expr": errors})
            of_levels.append({"record": f"aliquot:{level.name}:events_{window}", "expr": whole})
    groups: dict[str, list[dict[str, Any]]] = {
        "aliquot-recorded": recorded,
        "aliquot-levels": of_levels,
        "aliquot-devices": [alert.document() for alert in DEVICE_ALERTS],
        "aliquot-health": [alert.document() for alert in HEALTH_ALERTS],
        "aliquot-pool": [alert.document() for alert in POOL_ALERTS],
        "aliquot-tenants": [alert.document() for alert in TENANT_ALERTS],
        "aliquot-control-plane": [alert.document() for alert in CONTROL_ALERTS],
        "aliquot-levels-alerts": [alert.document() for level in LEVELS for alert in level_alerts(level)],
    }
    return {"groups": [{"name": name, "interval": INTERVAL, "rules": rules} for name, rules in groups.items()]}


def as_yaml() -> str:
    """As it is committed."""
    return _HEAD + yaml.safe_dump(document(), sort_keys=False, width=120, allow_unicode=True)
