"""Hardware that fails: lost devices, memory errors, events, recovery."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simgpu.conftest import ChildError, Machine

GPU_IS_LOST, NOT_SUPPORTED, TIMEOUT = 15, 3, 10
RECOVERY_ACTION, REMAP_PENDING, REMAP_FAILURE, DOUBLE_BIT_VOLATILE, MEMORY_TEMPERATURE = 230, 144, 145, 4, 82


def field(machine: Machine, number: int, index: int = 0) -> tuple[int, int]:
    code = f"[(v.nvmlReturn, v.value.ullVal) for v in n.nvmlDeviceGetFieldValues(h[{index}], [{number}])][0]"
    result, value = machine.nvml.eval(code)
    return result, value


def test_a_lost_device_answers_nothing_and_comes_back(machine: Machine) -> None:
    machine.nvml.eval("n.nvmlDeviceGetCount()")
    machine.scenario.lose(0)
    for call in (
        "n.nvmlDeviceGetMemoryInfo(h[0])",
        "n.nvmlDeviceGetUUID(h[0])",
        "n.nvmlDeviceGetComputeRunningProcesses_v3(h[0])",
        "n.nvmlDeviceGetFieldValues(h[0], [230])",
        "n.nvmlDeviceGetHandleByIndex(0)",
    ):
        assert machine.error(call) == GPU_IS_LOST
    assert machine.nvml.eval("n.nvmlDeviceGetCount()") == 2
    assert machine.used(1) == 0
    machine.scenario.restore(0)
    assert machine.used(0) == 0


def test_memory_errors_are_counted_where_they_happen(machine: Machine) -> None:
    machine.scenario.add_ecc_errors(0, corrected=3, uncorrected=1)
    machine.scenario.add_ecc_errors(0, corrected=2, location=1)
    nvml = machine.nvml
    assert nvml.eval("n.nvmlDeviceGetEccMode(h[0])") == [1, 1]
    assert nvml.eval("n.nvmlDeviceGetTotalEccErrors(h[0], 0, 0)") == 5
    assert nvml.eval("n.nvmlDeviceGetTotalEccErrors(h[0], 1, 1)") == 1
    assert nvml.eval("n.nvmlDeviceGetMemoryErrorCounter(h[0], 0, 0, 1)") == 2
    assert field(machine, DOUBLE_BIT_VOLATILE) == (0, 1)
    machine.scenario.reset(0)
    assert nvml.eval("n.nvmlDeviceGetTotalEccErrors(h[0], 0, 0)") == 0
    assert nvml.eval("n.nvmlDeviceGetTotalEccErrors(h[0], 0, 1)") == 5


def test_rows_are_remapped_on_newer_models_and_pages_retired_on_older(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine("A100-40", "V100-16")
    machine.scenario.set(0, remapped_correctable=2, remapped_uncorrectable=1, remap_pending=1, remap_failure=1)
    machine.scenario.set(1, retired_single=1, retired_double=2, retired_pending=1)
    nvml = machine.nvml
    assert nvml.eval("n.nvmlDeviceGetRemappedRows(h[0])") == [2, 1, 1, 1]
    assert field(machine, REMAP_PENDING) == (0, 1)
    assert field(machine, REMAP_FAILURE) == (0, 1)
    assert field(machine, REMAP_PENDING, 1)[0] == NOT_SUPPORTED
    assert machine.error("n.nvmlDeviceGetRemappedRows(h[1])") == NOT_SUPPORTED
    assert len(nvml.eval("n.nvmlDeviceGetRetiredPages(h[1], 1)")) == 2
    assert nvml.eval("n.nvmlDeviceGetRetiredPagesPendingStatus(h[1])") == 1
    assert machine.error("n.nvmlDeviceGetRetiredPages(h[0], 1)") == NOT_SUPPORTED
    machine.scenario.reset(0)
    assert field(machine, REMAP_PENDING) == (0, 0)


def test_fields_answer_one_by_one(machine: Machine) -> None:
    machine.scenario.set_recovery_action(0, 4)
    machine.scenario.set(0, memory_temperature_c=88)
    assert field(machine, RECOVERY_ACTION) == (0, 4)
    assert field(machine, MEMORY_TEMPERATURE) == (0, 88)
    results = machine.nvml.eval("[v.nvmlReturn for v in n.nvmlDeviceGetFieldValues(h[0], [230, 9999, 91])]")
    assert results == [0, NOT_SUPPORTED, 0]
    machine.scenario.reset(0)
    assert field(machine, RECOVERY_ACTION) == (0, 0)


EVENTS = "[n.nvmlDeviceRegisterEvents(x, n.nvmlDeviceGetSupportedEventTypes(x), events) for x in h]"
WAIT = "[(n.nvmlDeviceGetIndex(e.device), e.eventType, e.eventData) for e in [n.nvmlEventSetWait_v2(events, {})]][0]"


def listening(machine: Machine) -> None:
    machine.nvml.exec("events = n.nvmlEventSetCreate()")
    machine.nvml.exec(EVENTS)


def test_events_wake_their_waiter_in_order(machine: Machine) -> None:
    listening(machine)
    machine.nvml.start(WAIT.format(60_000))
    machine.scenario.raise_xid(1, 48)
    machine.scenario.raise_xid(0, 31)
    machine.scenario.add_ecc_errors(0, uncorrected=1)
    machine.scenario.set_recovery_action(0, 1)
    assert machine.nvml.finish() == [1, 8, 48]
    assert machine.nvml.eval(WAIT.format(1000)) == [0, 8, 31]
    assert machine.nvml.eval(WAIT.format(1000)) == [0, 2, 0]
    assert machine.nvml.eval(WAIT.format(1000)) == [0, 0x8000, 1]
    with pytest.raises(ChildError) as caught:
        machine.nvml.eval(WAIT.format(10))
    assert caught.value.number == TIMEOUT


def test_only_what_was_asked_for_and_only_from_then_on(machine: Machine) -> None:
    machine.nvml.eval("n.nvmlDeviceGetCount()")
    machine.scenario.raise_xid(0, 13)
    machine.nvml.exec("events = n.nvmlEventSetCreate(); n.nvmlDeviceRegisterEvents(h[0], 8, events)")
    machine.scenario.raise_xid(1, 14)
    machine.scenario.add_ecc_errors(0, corrected=1)
    machine.scenario.raise_xid(0, 15)
    assert machine.nvml.eval(WAIT.format(1000)) == [0, 8, 15]


def test_a_lost_device_says_why(machine: Machine) -> None:
    listening(machine)
    machine.scenario.lose(0)
    data = machine.nvml.eval("[(e.eventType, e.eventData) for e in [n.nvmlEventSetWait_v2(events, 1000)]][0]")
    assert data == [8, 79]


def test_a_reader_that_falls_behind_misses_the_oldest(machine: Machine) -> None:
    listening(machine)
    for xid in range(300):
        machine.scenario.raise_xid(0, xid)
    assert machine.nvml.eval(WAIT.format(1000)) == [0, 8, 300 - 256]


def test_events_of_instances_name_them(machine: Machine) -> None:
    listening(machine)
    machine.scenario.raise_xid(0, 94, gpu_instance=3, compute_instance=0)
    event = machine.nvml.eval(
        "[(e.gpuInstanceId, e.computeInstanceId) for e in [n.nvmlEventSetWait_v2(events, 1000)]][0]"
    )
    assert event == [3, 0]
