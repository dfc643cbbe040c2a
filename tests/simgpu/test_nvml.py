"""The real pynvml on the simulated library: what devices are and do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from aliquot.common.catalog import canonical_model, memory_total_bytes
from aliquot.simgpu import MODELS
from tests.simgpu.conftest import GIB, MIB, ChildError, Machine

NOT_SUPPORTED, INVALID_ARGUMENT, NOT_FOUND, DRIVER_NOT_LOADED = 3, 2, 6, 9


def test_without_a_scenario_the_driver_is_not_loaded(machine: Machine) -> None:
    for path in ("", "/nonexistent", "/etc/passwd"):
        with pytest.raises(ChildError) as caught:
            machine.child(ALIQUOT_SIMGPU=path).eval("n.nvmlDeviceGetCount()")
        assert caught.value.number == DRIVER_NOT_LOADED


def test_initialisation_is_counted(machine: Machine) -> None:
    child = machine.child()
    child.exec("n.nvmlInit(); n.nvmlShutdown()")
    assert child.eval("n.nvmlDeviceGetCount()") == 2
    child.exec("n.nvmlShutdown()")
    with pytest.raises(ChildError, match="Uninitialized"):
        child.eval("n.nvmlDeviceGetCount()")
    child.exec("n.nvmlInit()")
    assert child.eval("n.nvmlDeviceGetCount()") == 2


def test_every_symbol_that_pynvml_names_is_there(machine: Machine) -> None:
    source = Path(pynvml.__file__).read_text()
    symbols = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source)))
    assert len(symbols) > 300
    child = machine.child()
    assert child.eval(f"[s for s in {symbols!r} if not hasattr(ctypes.CDLL('libnvidia-ml.so.1'), s)]") == []


def test_what_the_hardware_lacks_is_not_supported(machine: Machine) -> None:
    machine.nvml.eval("n.nvmlDeviceGetCount()")
    assert machine.error("n.nvmlDeviceGetSupportedVgpus(h[0])") == NOT_SUPPORTED
    assert machine.error("n.nvmlDeviceGetAccountingMode(h[0])") == NOT_SUPPORTED
    assert machine.error("n.nvmlDeviceGetFanSpeed(h[0])") == NOT_SUPPORTED


@pytest.mark.parametrize("key", MODELS)
def test_models_report_themselves(make_machine: Callable[..., Machine], key: str) -> None:
    machine, model = make_machine(key), MODELS[key]
    nvml = machine.nvml
    name = nvml.eval("n.nvmlDeviceGetName(h[0])")
    memory = nvml.eval("n.nvmlDeviceGetMemoryInfo(h[0], version=n.nvmlMemory_v2)")
    assert canonical_model(name, memory["total"]) == key
    assert memory["total"] == model.memory_mib * MIB == memory_total_bytes(key)
    assert memory["reserved"] == model.reserved_mib * MIB
    assert memory["free"] + memory["reserved"] + memory["used"] == memory["total"]
    assert tuple(nvml.eval("n.nvmlDeviceGetCudaComputeCapability(h[0])")) == model.compute_capability
    assert nvml.eval("n.nvmlDeviceGetArchitecture(h[0])") == model.architecture
    assert nvml.eval("n.nvmlDeviceGetPciInfo(h[0])")["pciDeviceId"] == model.pci_id
    assert nvml.eval("n.nvmlDeviceGetPowerManagementLimit(h[0])") == model.power_limit_mw
    assert nvml.eval("n.nvmlDeviceGetMaxClockInfo(h[0], n.NVML_CLOCK_SM)") == model.clock_sm_max_mhz
    assert nvml.eval("n.nvmlDeviceGetBAR1MemoryInfo(h[0])")["bar1Total"] == model.bar1_mib * MIB


def test_both_versions_of_memory_agree(machine: Machine) -> None:
    machine.scenario.add_foreign(0, 3 * GIB)
    first = machine.nvml.eval("n.nvmlDeviceGetMemoryInfo(h[0])")
    second = machine.nvml.eval("n.nvmlDeviceGetMemoryInfo(h[0], version=n.nvmlMemory_v2)")
    assert second["used"] == 3 * GIB
    assert first["used"] == second["used"] + second["reserved"]
    assert first["free"] == second["free"]


def test_devices_are_found_by_every_name(machine: Machine) -> None:
    nvml = machine.nvml
    for index, device in enumerate(machine.scenario.devices()):
        assert nvml.eval(f"n.nvmlDeviceGetUUID(h[{index}])") == device.uuid
        assert nvml.eval(f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID('{device.uuid}'))") == index
        bus = nvml.eval(f"n.nvmlDeviceGetPciInfo(h[{index}])")["busId"]
        assert re.fullmatch(r"0{8}:[0-9A-F]{2}:00\.0", bus)
        assert nvml.eval(f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(b'{bus}'))") == index
        assert nvml.eval(f"n.nvmlDeviceGetMinorNumber(h[{index}])") == index
    serials = nvml.eval("[n.nvmlDeviceGetSerial(x) for x in h]")
    assert len(set(serials)) == 2
    assert machine.error("n.nvmlDeviceGetHandleByIndex(2)") == INVALID_ARGUMENT
    assert machine.error("n.nvmlDeviceGetHandleByUUID('GPU-none')") == NOT_FOUND


def test_sensors_follow_the_load_until_they_are_set(machine: Machine) -> None:
    nvml, scenario = machine.nvml, machine.scenario
    idle = nvml.eval("[n.nvmlDeviceGetTemperatureV(h[0], 0), n.nvmlDeviceGetPowerUsage(h[0])]")
    scenario.add_foreign(0, GIB, sm_percent=90)
    busy = nvml.eval("[n.nvmlDeviceGetTemperatureV(h[0], 0), n.nvmlDeviceGetPowerUsage(h[0])]")
    assert nvml.eval("n.nvmlDeviceGetUtilizationRates(h[0])")["gpu"] == 90
    assert busy[0] > idle[0]
    assert busy[1] > idle[1]
    scenario.set(0, gpu_percent=37, memory_percent=21)
    scenario.set(0, temperature_c=83)
    scenario.set(0, power_mw=123_456)
    scenario.set(0, fan_percent=55)
    scenario.set(0, clock_sm_mhz=900)
    scenario.set(0, throttle_reasons=0x48)
    assert nvml.eval("n.nvmlDeviceGetUtilizationRates(h[0])") == {"gpu": 37, "memory": 21}
    assert nvml.eval("n.nvmlDeviceGetTemperature(h[0], 0)") == 83
    assert nvml.eval("n.nvmlDeviceGetPowerUsage(h[0])") == 123_456
    assert nvml.eval("n.nvmlDeviceGetFanSpeed(h[0])") == 55
    assert nvml.eval("n.nvmlDeviceGetClockInfo(h[0], n.NVML_CLOCK_SM)") == 900
    assert nvml.eval("n.nvmlDeviceGetCurrentClocksEventReasons(h[0])") == 0x48
    assert nvml.eval("n.nvmlDeviceGetCurrentClocksThrottleReasons(h[0])") == 0x48
    assert nvml.eval("n.nvmlDeviceGetTemperatureThreshold(h[0], 1)") > 83


def test_energy_only_rises(machine: Machine) -> None:
    readings = machine.nvml.eval("[n.nvmlDeviceGetTotalEnergyConsumption(h[0]) for _ in range(3)]")
    assert readings == sorted(readings)


def test_topology_tells_neighbours_from_strangers(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine(*["A100-40"] * 8)
    ancestors = machine.nvml.eval("[n.nvmlDeviceGetTopologyCommonAncestor(h[0], h[i]) for i in (0, 1, 2, 5)]")
    assert ancestors == [0, 10, 30, 50]


def test_links_go_through_switches_or_to_peers(make_machine: Callable[..., Machine]) -> None:
    ampere, volta, alone = make_machine(*["A100-40"] * 2), make_machine(*["V100-16"] * 3), make_machine("A100-40")
    assert ampere.nvml.eval("[n.nvmlDeviceGetNvLinkState(h[0], i) for i in range(12)]") == [1] * 12
    assert ampere.error("n.nvmlDeviceGetNvLinkState(h[0], 12)") == INVALID_ARGUMENT
    assert ampere.nvml.eval("n.nvmlDeviceGetNvLinkRemotePciInfo(h[0], 0)")["pciDeviceId"] == 0x22A310DE
    peers = volta.nvml.eval("[n.nvmlDeviceGetNvLinkRemotePciInfo(h[0], i).busId for i in range(6)]")
    assert set(peers) == set(volta.nvml.eval("[n.nvmlDeviceGetPciInfo(x).busId for x in h[1:]]"))
    assert alone.error("n.nvmlDeviceGetNvLinkState(h[0], 0)") == NOT_SUPPORTED
    ampere.scenario.set_link(0, 3, active=False, errors=7)
    assert ampere.nvml.eval("n.nvmlDeviceGetNvLinkState(h[0], 3)") == 0
    assert ampere.nvml.eval("n.nvmlDeviceGetNvLinkErrorCounter(h[0], 3, 0)") == 7


def test_modes_can_be_changed(machine: Machine) -> None:
    nvml = machine.nvml
    assert nvml.eval("n.nvmlDeviceGetPersistenceMode(h[0])") == 0
    if nvml.eval("os.geteuid()") != 0:
        assert machine.error("n.nvmlDeviceSetPersistenceMode(h[0], 1)") == 4
        return
    nvml.exec("n.nvmlDeviceSetPersistenceMode(h[0], 1); n.nvmlDeviceSetComputeMode(h[0], 3)")
    assert nvml.eval("[n.nvmlDeviceGetPersistenceMode(h[0]), n.nvmlDeviceGetComputeMode(h[0])]") == [1, 3]
    nvml.exec("n.nvmlDeviceSetPowerManagementLimit(h[0], 200_000)")
    assert nvml.eval("n.nvmlDeviceGetEnforcedPowerLimit(h[0])") == 200_000
    assert machine.error("n.nvmlDeviceSetPowerManagementLimit(h[0], 1)") == INVALID_ARGUMENT
