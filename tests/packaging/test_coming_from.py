"""The page for those who come from other systems: it knows their names, and every name that it gives here exists."""

from __future__ import annotations

import json
import re
from typing import Final

import pytest

from aliquot.cli.main import commands
from tests.packaging.layout import REPOSITORY

PAGE: Final = (REPOSITORY / "docs/coming-from.md").read_text()
ROWS: Final = [
    line.replace("\\|", "¦").strip("|").split("|")
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| there |"))
]
METRICS: Final = (REPOSITORY / "docs/metrics.md").read_text()
RULES: Final = (REPOSITORY / "deploy/monitoring/rules.yaml").read_text()
ROUTES: Final = json.loads((REPOSITORY / "tests/console/openapi.json").read_text())["paths"]
PODS: Final = "".join(path.read_text() for path in (REPOSITORY / "docs").glob("kubernetes*.md"))

_NAMES: Final = """
0.5(vgpu) 1(nvidia,V100) 2(amd) 2（V100） 8G,0.5 gpu_type workload-type nodeSelector pack spread balanced fifo
priority fair_share capacity max_capacity guaranteed_capacity weight balance_threshold min_nodes_for_balance
balance_interval gpu_fragmentation_threshold min_replicas max_replicas MONITOR_UPDATE_INTERVAL
RESOURCE_CHANGE_THRESHOLD KUBECONFIG LOG_LEVEL PROMETHEUS_URL HPA_API_VERSION SCHEDULING_POLICY QUEUE_WORKERS
high_priority_threshold low_priority_threshold max_pending_requests metrics_query_timeout
default_cpu_threshold default_memory_threshold default_gpu_threshold cors_enabled alert_enabled
ALERT_WEBHOOK_URL GPU_EXPORTER_PORT WEB_API_PORT AGGREGATION_INTERVAL RETENTION_DAYS GRAFANA_URL
GRAFANA_API_KEY health_check_interval health_score_threshold gpu_utilization_percent gpu_memory_used_bytes
gpu_memory_total_bytes gpu_temperature_celsius gpu_power_usage_watts cluster_gpu_total cluster_gpu_allocated
hpa_scaling_events_total gpu_scheduler_queue_size gpu_scheduling_latency_seconds gpu_balancer_enabled
gpu_hpa_created_total gpu_scheduling_requests_total compute_pool_usage container_gpu_usage
container_amd_gpu_usage container_intel_gpu_usage DCGM_FI_DEV_GPU_UTIL NodeHealthStatus GPUErrorRate
RecoveryAttempts MTTR MTBF GPUHighUtilization GPULowUtilization GPUMemoryHigh GPUMemoryFull GPUHighTemperature
GPUCriticalTemperature SchedulerQueueHigh SchedulingLatencyHigh HPAScalingFrequent Stage2ServiceDown
HighQueueSize BalancerInactive GPUSchedulingLatencyHigh GPUUtilizationLow /api/v1/schedule /api/v1/gpu/metrics
/api/v1/cluster/status /api/v1/trends /api/v1/dashboard/config /api/v1/hpa /health /ready ComputePool
ElasticJob UsageTracker RemoteTensor PROM_URL THRESHOLD INTERVAL MAX_WORKERS TIME_WINDOW_MIN STEP
QUERY_CONDITION CONTROL_API_ENABLED CONTROL_API /results /results/low /results/stats /analyze
nvidia.com/gpumem nvidia.com/gpucores nvidia.com/gpumem-percentage nvidia.com/use-gputype
CUDA_DEVICE_MEMORY_LIMIT gpu-fraction gpu-memory kai.scheduler/queue nvidia.com/gpu.shared
nvidia.com/mig-1g.10gb squeue scancel sacct
RTX3090 3090ti V100S A5000 high-priority medium-priority low-priority GPUMemoryRequirement
parse_gpu_resource GPUResource GPU_RESOURCE DEFAULT_GPU_RESOURCE_NAME amd.com/gpu intel.com/gpu huawei.com/npu
GPUAdapter GPUAdapterFactory NodeGPUInfo get_gpu_nodes allocate_gpu release_gpu ResourceMonitor
ClusterResourceSummary accelerator gpu-count gpu-interconnect nvidia-driver-version org train=true
GPUHealthChecker GPUError node_isolation gpu-health-check.sh gpu-node-recovery GPUFilter GPUSchedulerConfig
KubeSchedulerConfiguration SchedulingRequest schedule_pod process_pending_requests PriorityQueue get_queue_status
Job on_job_start on_job_complete on_job_preempt ResourcePool create_pool register_physical_resource set_quota
get_tenant_usage get_pool_stats PhysicalResource VirtualResource ResourceSpec ResourceType ResourceState
ResourceRequest ResourceAllocation validate_memory_requirement find_suitable_nodes create_hpa
create_gpu_aware_hpa get_hpa_status predictive_scaler PrometheusMetricsCollector container_gpu_utilization
K8sResourceManager create_pod_with_gpu create_deployment delete_pod label_node start_session end_session
charge_session add_credit get_balance Invoice reserve_gpu_memory RPCRequest RPCResponse cuda_malloc cuda_memcpy
tensor_create tensor_op model_forward gpu-resource-manager gpu-exporter monitoring-aggregator gpu_parser
gpu_adapter resource_monitor gpu_memory_guard gpu_hpa_controller metrics_collector gpu_scheduler priority_queue
ResourceBalancer gpu_exporter grafana_dashboard_generator alert_rules_generator monitoring_aggregator web_api
health_check gpu-overview.json gpu-resources.json gpu-alerts.yaml charts/gpu-scheduler resource_manager.log
MemoryGuardException GPU_UTIL_WEIGHT MEM_COPY_WEIGHT MEM_USED_WEIGHT POWER_WEIGHT success_rate gpu_error_count
"""
KNOWN: Final = _NAMES.split()


@pytest.mark.parametrize("name", KNOWN)
def test_who_looks_for_an_old_name_finds_it_on_the_left(name: str) -> None:
    assert any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", there) for there, _ in ROWS)


def here(pattern: str) -> set[str]:
    """What the right column writes of one kind."""
    return {found for _, text in ROWS for found in re.findall(pattern, text)}


@pytest.mark.parametrize("name", sorted(here(r"`(aliquot_\w+)`")))
def test_a_metric_is_served(name: str) -> None:
    assert f"| `{name}" in METRICS


@pytest.mark.parametrize("name", sorted(here(r"`((?:Aliquot|GPU|HPA|Scheduler|Scheduling)[A-Z]\w+)`")))
def test_an_alert_is_a_rule(name: str) -> None:
    assert f"alert: {name}\n" in RULES


@pytest.mark.parametrize("words", sorted(here(r"`aliquot ([a-z][a-z -]*?)(?: [A-Z-].*?)?`")))
def test_a_command_is_there(words: str) -> None:
    assert words.split(maxsplit=1)[0] in {command.name for command in commands([])}


@pytest.mark.parametrize("route", sorted(here(r"`(?:GET|POST) (/api/[\w/.-]+)`")))
def test_a_route_is_served(route: str) -> None:
    assert route in ROUTES


@pytest.mark.parametrize("name", sorted(here(r"`?(aliquot\.dev/[\w-]+)")))
def test_a_word_of_pods_is_explained(name: str) -> None:
    assert name in PODS
