"""Devices of several kinds behind one agent: one that is broken takes nothing from the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from aliquot.agent.core.samples import DeviceEvent, DeviceInfo, DriverInfo, MemorySample, ProcessList
from aliquot.agent.devices.base import BackendUnavailable, DeviceError, Discovery
from aliquot.agent.devices.kinds import make_backend
from aliquot.agent.devices.several import Kind, SeveralKinds, try_in_child
from aliquot.common.errors import ConfigError
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node
from tests.agent.test_metrics_endpoint import scrape
from tests.devices.recorder import Recorder
from tests.devices.replay import Frame, ReplayBackend, Sample, Trace

NVIDIA = DeviceInfo("GPU-a", 0, "NVIDIA A100", "A100-40", "nvidia", 40 * GIB, GIB)
AMD = DeviceInfo("GPU-00000000000000b0", 0, "Instinct MI300X", "MI300X", "amd", 192 * GIB, 0)

REPLAYING = ("-m", "tests.agent.replaying_agent")


def trace(info: DeviceInfo, *events: DeviceEvent) -> Trace:
    sample = Sample(memory=MemorySample(info.memory_total_bytes, 0, GIB), processes=ProcessList(()))
    return Trace((info,), (Frame(0, {info.uuid: sample}), Frame(0, events=events)), DriverInfo("1.0", ""))


class Faulty(ReplayBackend):
    """Fails where it is told to, with what it is told."""

    def __init__(self, trace: Trace, faults: Mapping[str, Callable[[], object]]) -> None:
        super().__init__(trace)
        self.faults = dict(faults)

    def _fail(self, where: str) -> None:
        if where in self.faults:
            self.faults[where]()

    def open(self) -> DriverInfo:
        self._fail("open")
        return super().open()

    def discover(self) -> Discovery:
        self._fail("discover")
        return super().discover()

    def wait_events(self, timeout_ms: int) -> Sequence[DeviceEvent]:
        self._fail("events")
        return super().wait_events(timeout_ms)


def raising(error: BaseException) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


def several(*backends: ReplayBackend, timeout_s: float = 20.0) -> SeveralKinds:
    kinds = [
        Kind(f"kind{number}", lambda made=made: made)  # type: ignore[misc]
        for number, made in enumerate(backends)
    ]
    return SeveralKinds(kinds, timeout_s)


def test_all_devices_are_listed_each_with_its_own_number_and_asked_of_their_own_kind() -> None:
    backend = several(ReplayBackend(trace(NVIDIA)), ReplayBackend(trace(AMD)))
    assert backend.open().driver_version == "kind0 1.0; kind1 1.0"
    found = backend.discover()
    assert [info.uuid for info in found.devices] == [NVIDIA.uuid, AMD.uuid]
    assert len({info.index for info in found.devices}) == 2
    assert found.kinds == {"kind0": "", "kind1": ""}
    assert backend.memory(AMD.uuid).total_bytes == AMD.memory_total_bytes
    assert backend.memory(NVIDIA.uuid).total_bytes == NVIDIA.memory_total_bytes
    with pytest.raises(DeviceError):
        backend.memory("GPU-elsewhere")


def test_no_island_spans_two_kinds() -> None:
    backend = several(*(ReplayBackend(trace(replace(info, fabric_island=0))) for info in (NVIDIA, AMD)))
    backend.open()
    islands = [info.fabric_island for info in backend.discover().devices]
    assert None not in islands
    assert len(set(islands)) == 2


def test_each_devices_programs_are_shown_it_by_its_vendors_variables_alone() -> None:
    backend = several(ReplayBackend(trace(NVIDIA)), ReplayBackend(trace(AMD)))
    backend.open()
    nvidia, amd = backend.discover().devices
    assert set(backend.visibility([amd])) == {"ROCR_VISIBLE_DEVICES"}
    assert backend.visibility([nvidia])["CUDA_VISIBLE_DEVICES"] == NVIDIA.uuid
    both = backend.visibility([nvidia, amd])
    assert (both["CUDA_VISIBLE_DEVICES"], both["ROCR_VISIBLE_DEVICES"]) == (NVIDIA.uuid, AMD.uuid)


@pytest.mark.parametrize(
    "error", [BackendUnavailable("no driver"), KeyError("amdsmi_init"), AttributeError("symbol"), OSError("no library")]
)
@pytest.mark.parametrize("where", ["open", "discover"])
def test_a_kind_that_fails_is_told_and_the_others_stay_up(error: Exception, where: str) -> None:
    bad = Faulty(trace(NVIDIA), {where: raising(error)})
    backend = several(bad, ReplayBackend(trace(AMD)))
    backend.open()
    found = backend.discover()
    assert [info.uuid for info in found.devices] == [AMD.uuid]
    assert found.kinds["kind1"] == ""
    assert found.kinds["kind0"]
    assert found.kinds["kind0"] in "; ".join(found.problems)
    assert backend.memory(AMD.uuid).used_bytes == GIB
    bad.faults.clear()
    again = backend.discover()
    assert [info.uuid for info in again.devices] == [NVIDIA.uuid, AMD.uuid]
    assert not again.problems
    assert found.devices[0] == again.devices[1], "numbers don't change when another kind comes back"


def test_where_no_kind_answers_there_is_no_backend() -> None:
    backend = several(Faulty(trace(NVIDIA), {"open": raising(BackendUnavailable("no driver"))}))
    with pytest.raises(BackendUnavailable, match="kind0: no driver"):
        backend.open()


def test_a_kind_that_hangs_keeps_nobody_waiting_twice() -> None:
    release = threading.Event()
    bad = Faulty(trace(NVIDIA), {})
    backend = several(bad, ReplayBackend(trace(AMD)), timeout_s=0.2)
    backend.open()
    assert len(backend.discover().devices) == 2
    bad.faults["discover"] = release.wait
    for _ in range(2):
        found = backend.discover()
        assert [info.uuid for info in found.devices] == [AMD.uuid]
        assert found.kinds["kind0"]
    # Its devices are still its own: they may answer, or fail by themselves.
    assert backend.memory(NVIDIA.uuid).used_bytes == GIB
    bad.faults.clear()
    release.set()
    while len(backend.discover().devices) < 2:
        pass


def test_events_of_every_kind_are_heard_whatever_becomes_of_another() -> None:
    event = DeviceEvent(AMD.uuid, 79)
    release = threading.Event()
    for fault in (raising(RuntimeError("broken")), release.wait):
        backend = several(Faulty(trace(NVIDIA), {"events": fault}), ReplayBackend(trace(AMD, event)))
        backend.open()
        backend.discover()
        assert list(backend.wait_events(10)) == [event]
    release.set()


def test_a_library_that_takes_its_process_along_is_found_out_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "signal 11" in try_in_child("nvml")
    (tmp_path / "pynvml.py").write_text("raise KeyError('amdsmi_init')\n")
    assert "KeyError" in try_in_child("nvml")


async def test_an_agent_of_two_kinds_goes_on_with_the_one_that_answers(
    node: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    recorder = Recorder(ReplayBackend(trace(AMD)))
    recorder.open()
    recorder.discover()
    recorder.memory(AMD.uuid)
    recorder.processes(AMD.uuid)
    recorder.write(tmp_path / "trace.json")
    node.program = REPLAYING
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libnvidia-ml.so.1").write_text("no library")
    before = node.base_environment()["LD_LIBRARY_PATH"]
    node.environment["LD_LIBRARY_PATH"] = f"{broken}:{before}"
    await asyncio.to_thread(node.start, coordinator.address, "--devices", f"nvml,replay:{tmp_path / 'trace.json'}")
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    told = coordinator.snapshots[-1].node
    assert [device.uuid for device in told.devices] == [AMD.uuid]
    notes = node.ask_info().notes
    assert any("nvml" in note for note in notes), notes
    assert 'aliquot_duty{duty="devices-nvml",node="test-node"} 0.0' in scrape(node)
    node.kill9()
    # The library is repaired: at the next start, all are there.
    (broken / "libnvidia-ml.so.1").unlink()
    await asyncio.to_thread(node.start, coordinator.address, "--devices", f"nvml,replay:{tmp_path / 'trace.json'}")
    everybody = {AMD.uuid, *node.uuids}
    await coordinator.until(
        lambda: {device.uuid for device in coordinator.snapshots[-1].node.devices} == everybody, "all devices are told"
    )


@pytest.mark.parametrize("text", ["", "nvml,nvml", "voodoo", "nvml:x", "replay", "replay:", "auto,nvml"])
def test_settings_that_name_no_kinds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        make_backend(text)


def test_kinds_are_made_as_the_setting_names_them() -> None:
    assert make_backend("nvml").name == "nvml"
    assert make_backend("auto").name == "nvml", "nothing shows on this machine: its driver may come later"
