"""For each alert: series under which it fires, and series under which it does not, in promtool's notation.

Each number is 30 s after the one before it; `AxN` is A and N more of it, `A+BxN` N more, each larger by B.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DEVICE = 'node="gpu-07", index="3", model="H100-80", uuid="GPU-5f3c"'
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """`wrong` and `right`: series and their values."""

    wrong: dict[str, str]
    right: dict[str, str]
    at: str = "30m"
    """When it is looked at."""
    labels: dict[str, str] = field(default_factory=dict)
    """Those of the alert that fires, beside its severity."""


def _device(metric: str, wrong: str, right: str, at: str = "30m", **more: str) -> Case:
    series = f"aliquot_device_{metric}{{{DEVICE}}}"
    beside = {f"aliquot_device_{name}{{{DEVICE}}}": values for name, values in more.items()}
    labels = {"node": "gpu-07", "index": "3", "model": "H100-80", "uuid": "GPU-5f3c"}
    return Case({series: wrong, **beside}, {series: right, **beside}, at, labels)


def _pool(series: str, wrong: str, right: str, at: str = "30m", **labels: str) -> Case:
    return Case({series: wrong}, {series: right}, at, labels)


_MEMORY = {"memory_total_bytes": f"{80 * GIB}x200", "memory_reserved_bytes": "0x200"}
_XIDS = f'aliquot_device_xids_total{{{DEVICE}, severity="fatal"}}'
_PROGRAMS = f'aliquot_device_xids_total{{{DEVICE}, severity="program"}}'
_SLOW = {
    'aliquot_grant_to_active_seconds_bucket{le="1.0"}': "0x100",
    'aliquot_grant_to_active_seconds_bucket{le="30.0"}': "0+1x100",
    'aliquot_grant_to_active_seconds_bucket{le="+Inf"}': "0+1x100",
    "aliquot_grant_to_active_seconds_count": "0+1x100",
}
_QUICK = {**_SLOW, 'aliquot_grant_to_active_seconds_bucket{le="1.0"}': "0+1x100"}
_LATE = {**_QUICK, 'aliquot_grant_to_active_seconds_bucket{le="30.0"}': "0x100"}
_CALLS = "aliquot_calls_total"


def _guaranteed(in_time: float) -> dict[str, str]:
    """One request each half minute, of which this part is active within one."""
    name = "aliquot_guaranteed_start_seconds"
    buckets = {"60.0": f"0+{in_time}x100", "+Inf": "0+1x100"}
    found = {f'{name}_bucket{{le="{bound}"}}': values for bound, values in buckets.items()}
    return {**found, f"{name}_count": "0+1x100"}


def _jobs(outcome: str) -> str:
    return f'aliquot_jobs_total{{tenant="lab", queue="", outcome="{outcome}"}}'


_REFUSED = "aliquot_requests_refused_total"
_CERTIFICATE = 'aliquot_certificate_{}_seconds{{of="server", instance="a"}}'

CASES: dict[str, Case] = {
    "GPUHighUtilization": _device("utilisation_ratio", "0.97x100", "0.5x100"),
    "GPULowUtilization": _device("utilisation_ratio", "0.01x300", "0.4x300", "80m", leases="1x300"),
    "GPUMemoryHigh": _device("memory_used_bytes", f"{75 * GIB}x200", f"{40 * GIB}x200", **_MEMORY),
    "GPUMemoryFull": _device("memory_used_bytes", f"{79 * GIB}x200", f"{74 * GIB}x200", **_MEMORY),
    "GPUHighTemperature": _device("temperature_celsius", "85x100", "80x100"),
    "GPUCriticalTemperature": _device("temperature_celsius", "93x100", "90x100"),
    "AliquotDeviceUnwell": _device("healthy", "0x100", "1x40 0x10 1x50"),
    "AliquotXidFatal": Case(
        {_XIDS: "0x50 1x50"},
        {_XIDS: "1x100", _PROGRAMS: "0+10x100"},
        "29m",
        {"node": "gpu-07", "index": "3", "model": "H100-80", "uuid": "GPU-5f3c", "severity": "warning"},
    ),
    "AliquotForeignMemory": _device("foreign_bytes", f"{4 * GIB}x100", "1000x100"),
    "AliquotLimitPassed": Case(
        {'aliquot_agent_limit_breaches_total{node="gpu-07", tier="preload"}': "0x50 1x50"},
        {'aliquot_agent_limit_breaches_total{node="gpu-07", tier="watchdog"}': "0x50 1x50"},
        "29m",
        {"node": "gpu-07", "tier": "preload"},
    ),
    "AliquotCardNeedsPerson": Case(
        {'aliquot_cards_unwell{state="SERVICE"}': "1x100"}, {'aliquot_cards_unwell{state="REPAIRING"}': "1x100"}
    ),
    "AliquotIncidentOld": _pool("aliquot_incident_oldest_seconds", "1x400", "0x400", "180m"),
    "AliquotManyCardsOut": Case(
        {'aliquot_cards_out{cause="xid-79"}': "8x100", 'aliquot_devices{pool="p", model="H100-80"}': "64x100"},
        {'aliquot_cards_out{cause="xid-79"}': "1x100", 'aliquot_devices{pool="p", model="H100-80"}': "8x100"},
    ),
    "AliquotSlicesUnknown": _pool('aliquot_slices_unknown{node="gpu-07"}', "2x100", "2x5", node="gpu-07"),
    "SchedulerQueueHigh": _pool("aliquot_queue_depth", "150x100", "150x3 20x100"),
    "SchedulingLatencyHigh": Case(_SLOW, _QUICK),
    "GPUSchedulingLatencyHigh": Case(
        {
            'aliquot_decision_seconds_bucket{le="0.1"}': "0x100",
            'aliquot_decision_seconds_bucket{le="0.25"}': "0+1x100",
            'aliquot_decision_seconds_bucket{le="+Inf"}': "0+1x100",
        },
        {
            'aliquot_decision_seconds_bucket{le="0.1"}': "0+1x100",
            'aliquot_decision_seconds_bucket{le="+Inf"}': "0+1x100",
        },
    ),
    "AliquotHeldForNothing": Case(
        {'aliquot_use_share_milli{use="HELD"}': "400x600", 'aliquot_use_share_milli{use="ACTIVE"}': "600x600"},
        {'aliquot_use_share_milli{use="HELD"}': "200x600", 'aliquot_use_share_milli{use="ACTIVE"}': "800x600"},
        "150m",
    ),
    "AliquotCardHardlyUsed": _pool(
        'aliquot_watch_use_score{namespace="ml", pod="nb-0", gpu_id="GPU-5f3c"}',
        "12x400",
        "20x400",
        "150m",
        namespace="ml",
        pod="nb-0",
        gpu_id="GPU-5f3c",
    ),
    "HPAScalingFrequent": _pool(
        'kube_horizontalpodautoscaler_status_desired_replicas{namespace="ml", horizontalpodautoscaler="chat"}',
        "2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2 4",
        "2x20 3x20 4x60",
        "20m",
        namespace="ml",
        horizontalpodautoscaler="chat",
    ),
    "AliquotLeaseHung": Case(
        {'aliquot_leases_by_use{use="HUNG"}': "1x100"}, {'aliquot_leases_by_use{use="IDLE"}': "1x100"}
    ),
    "AliquotNodeOrderLate": _pool(
        'aliquot_node_order_due_seconds{shape="h100", way="ADD"}', "1x400", "0x400", shape="h100", way="ADD"
    ),
    "AliquotNodeOrdersFail": _pool(
        'aliquot_node_orders_total{shape="h100", way="ADD", state="FAILED"}', "0+1x100", "4x100", shape="h100"
    ),
    "AliquotPoolFull": Case(
        {
            'aliquot_leased_share_milli{pool="p", model="m"}': "990x300",
            'aliquot_capacity_share_milli{pool="p", model="m"}': "1000x300",
            "aliquot_queue_depth": "3x300",
        },
        {
            'aliquot_leased_share_milli{pool="p", model="m"}': "990x300",
            'aliquot_capacity_share_milli{pool="p", model="m"}': "1000x300",
            "aliquot_queue_depth": "0x300",
        },
        "80m",
        {"pool": "p", "model": "m"},
    ),
    "AliquotPoolUseLow": Case(
        {
            'aliquot_leased_share_milli{pool="p", model="m"}': "100x4000",
            'aliquot_capacity_share_milli{pool="p", model="m"}': "1000x4000",
        },
        {
            'aliquot_leased_share_milli{pool="p", model="m"}': "100x1000 500x5 100x2500",
            'aliquot_capacity_share_milli{pool="p", model="m"}': "1000x4000",
        },
        "25h",
        {"pool": "p", "model": "m"},
    ),
    "AliquotQueueWaitLong": _pool(
        'aliquot_tenant_waiting_since_seconds{tenant="lab", queue="batch"}',
        "60x400",
        "60x100 3000x300",
        "80m",
        tenant="lab",
        queue="batch",
    ),
    "AliquotBudgetNearlyUsed": _pool(
        'aliquot_budget_used_ratio{tenant="lab"}', "0.79x20 0.8x100", "1x100", tenant="lab"
    ),
    "AliquotBudgetUsed": _pool('aliquot_budget_used_ratio{tenant="lab"}', "0.79x20 1x100", "0.999x100", tenant="lab"),
    "AliquotBalanceSpent": _pool('aliquot_tenant_balance_micro{tenant="lab"}', "5-1x100", "1x100", tenant="lab"),
    "AliquotJobsFail": Case(
        {_jobs("FAILED"): "0+1x200", _jobs("SUCCEEDED"): "0+0.5x200"},
        {_jobs("FAILED"): "0+1x200", _jobs("SUCCEEDED"): "0+2x200"},
        "70m",
        {"tenant": "lab"},
    ),
    "AliquotNoLeader": Case(
        {'aliquot_leading{instance="a"}': "0x100", 'aliquot_leading{instance="b"}': "0x100"},
        {'aliquot_leading{instance="a"}': "0x100", 'aliquot_leading{instance="b"}': "1x100"},
    ),
    "AliquotNotGranting": Case(
        {"aliquot_granting": "0x100", "aliquot_leading": "1x100"},
        {"aliquot_granting": "1x100", "aliquot_leading": "1x100"},
    ),
    "AliquotClocksApart": _pool(
        'aliquot_clock_ahead_seconds{clock="machine", of="database", instance="a"}',
        "-3600x100",
        "-20x100",
        clock="machine",
        of="database",
        instance="a",
    ),
    "AliquotLeaderRestless": _pool('aliquot_leader_epoch{instance="a"}', "1+1x60", "1x30 2x30"),
    "AliquotAgentRestless": Case(
        {'aliquot_agent_sessions_total{node="gpu-07"}': "0+1x60"},
        {'aliquot_agent_sessions_total{node="gpu-07"}': "1x30 4x30"},
        "45m",
        {"node": "gpu-07", "severity": "warning"},
    ),
    "AliquotCommitFailures": _pool(
        'aliquot_commit_failures_total{instance="a"}', "0x50 2x50", "2x100", "29m", instance="a"
    ),
    "AliquotTargetDown": Case(
        {'up{job="aliquot-agent", instance="a"}': "0x100"},
        {'up{job="aliquot-agent", instance="a"}': "1x100", 'up{job="another", instance="b"}': "0x100"},
        labels={"job": "aliquot-agent", "instance": "a"},
    ),
    "AliquotNodeSilent": Case({'aliquot_nodes{state="LOST"}': "1x100"}, {'aliquot_nodes{state="READY"}': "1x100"}),
    "AliquotAgentAlone": _pool('aliquot_agent_connected{node="gpu-07"}', "0x100", "1x100", node="gpu-07"),
    "AliquotSetAside": _pool("aliquot_set_aside", "1x100", "0x100"),
    "AliquotLoopLag": _pool('aliquot_loop_lag_seconds{instance="a"}', "0.8x100", "0.01x100", instance="a"),
    "AliquotDutyFails": Case(
        {'aliquot_duty{node="gpu-07", duty="kernel-log"}': "0x100"},
        {'aliquot_duty{node="gpu-07", duty="kernel-log"}': "1x40 0x10 1x50", 'aliquot_duty{duty="snapshots"}': "1x100"},
        "30m",
        {"node": "gpu-07", "duty": "kernel-log", "severity": "warning"},
    ),
    "AliquotCertificateDue": Case(
        {_CERTIFICATE.format("due"): "60x400", _CERTIFICATE.format("ends"): "1000000x400"},
        {_CERTIFICATE.format("due"): "60x400", _CERTIFICATE.format("ends"): "120x400"},
        "80m",
        {"of": "server", "instance": "a", "severity": "warning"},
    ),
    "AliquotCertificateEnded": _pool(_CERTIFICATE.format("ends"), "60x100", "100000x100", of="server", instance="a"),
    "AliquotDenials": _pool('aliquot_denied_total{reason="TOKEN_UNKNOWN"}', "0+20x100", "0+1x100"),
    "AliquotGrantsSlowFast": Case(_LATE, _QUICK, "40m"),
    "AliquotGrantsSlowSlowly": Case(
        {**_LATE, 'aliquot_grant_to_active_seconds_bucket{le="30.0"}': "0+0.9x100"}, _QUICK, "40m"
    ),
    "AliquotGuaranteesLateFast": Case(_guaranteed(0), _guaranteed(1), "40m"),
    "AliquotGuaranteesLateSlowly": Case(_guaranteed(0.9), _guaranteed(1), "40m"),
    "AliquotCallsFailFast": Case(
        {_CALLS + '{method="Get"}': "0+10x100", _REFUSED + '{reason="INTERNAL"}': "0+1x100"},
        {_CALLS + '{method="Get"}': "0+10x100", _REFUSED + '{reason="NEVER_FITS"}': "0+5x100"},
        "40m",
    ),
    "AliquotCallsFailSlowly": Case(
        {_CALLS + '{method="Get"}': "0+1000x100", _REFUSED + '{reason="OVERLOADED"}': "0+4x100"},
        {_CALLS + '{method="Get"}': "0+1000x100"},
        "40m",
    ),
}
