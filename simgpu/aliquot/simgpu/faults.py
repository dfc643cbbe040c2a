"""Faults on demand: which NVML and CUDA calls are slow, hang or fail.

A rule names its calls by symbol (`nvmlDeviceGetMemoryInfo_v2`), by class (`memory`, see CALL_CLASSES) or as `*`, and
a device or none. There is one rule for each pair; setting one aspect leaves the others as they were.
"""

from __future__ import annotations

import msgspec

from aliquot.simgpu import layout
from aliquot.simgpu.errors import ScenarioError

CALL_CLASSES = (
    "init", "system", "count", "handle", "identity", "modes", "memory", "limits", "processes", "process_utilization",
    "utilization", "temperature", "power", "clocks", "fan", "pstate", "throttle", "pcie", "ecc", "remap", "fields",
    "topology", "nvlink", "mig", "mig_admin", "gpm", "events",
    "cuda_init", "cuda_device", "cuda_context", "cuda_memory_info", "cuda_alloc", "cuda_free", "cuda_host",
    "cuda_pool", "cuda_vmm", "cuda_array", "cuda_graph", "cuda_ipc", "cuda_module", "cuda_launch", "cuda_stream",
    "cuda_copy",
)  # fmt: skip

MEASURED_LATENCY_NS = {
    "processes": 4_500_000,
    "process_utilization": 4_500_000,
    "fan": 137_000,
    "memory": 12_000,
    "utilization": 2_500,
    "temperature": 2_500,
    "power": 2_500,
    "clocks": 2_500,
    "ecc": 12_000,
    "fields": 12_000,
}
"""What calls took on a machine that was measured; a query's cost is spent under NVML's one lock."""


class Fault(msgspec.Struct, frozen=True):
    """One rule. `device` None: every device, and calls that are about none."""

    call: str
    device: int | None
    latency_ns: int
    hang: bool
    error: int


def set_rule(
    file: layout.ScenarioFile,
    call: str,
    device: int | None,
    *,
    latency_ns: int | None = None,
    hang: bool | None = None,
    error: int | None = None,
) -> None:
    """Changes the rule for (call, device), making or dropping it as needed. Wants the lock."""
    if not call or len(call.encode()) > 63:
        raise ScenarioError(f"{call!r} can't name a call", hint="use a symbol, a class of calls or '*'")
    number = -1 if device is None else device
    rule = _find(file, call, number)
    if latency_ns is not None:
        rule.latency_ns = latency_ns
    if hang is not None:
        rule.hang = hang
    if error is not None:
        rule.error = error
    rule.call = call.encode()
    rule.device = number
    rule.in_use = bool(rule.latency_ns or rule.hang or rule.error)
    file.rules_generation += 1


def clear_rules(file: layout.ScenarioFile, call: str | None) -> None:
    """Drops all rules, or those for one name; calls that hang because of them go on. Wants the lock."""
    for rule in file.rules:
        if call is None or rule.call == call.encode():
            rule.hang = 0
            rule.in_use = rule.error = rule.latency_ns = 0
            rule.call = b""
    file.rules_generation += 1


def list_rules(file: layout.ScenarioFile) -> tuple[Fault, ...]:
    """The rules in use. Wants the lock."""
    return tuple(
        Fault(
            call=rule.call.decode(),
            device=None if rule.device < 0 else rule.device,
            latency_ns=rule.latency_ns,
            hang=bool(rule.hang),
            error=rule.error,
        )
        for rule in file.rules
        if rule.in_use
    )


def _find(file: layout.ScenarioFile, call: str, device: int) -> layout.Rule:
    free: layout.Rule | None = None
    rule: layout.Rule
    for rule in file.rules:
        if rule.in_use and rule.call == call.encode() and rule.device == device:
            return rule
        if not rule.in_use and free is None:
            free = rule
    if free is None:
        raise ScenarioError(
            f"all {layout.RULES_MAX} rules are in use", hint="clear the faults that are no longer needed"
        )
    free.latency_ns = free.hang = free.error = 0
    return free
