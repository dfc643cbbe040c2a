"""Under the agent: guarded calls, replayed traces, cgroup mounts, MIG."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aliquot.agent.core.model import Holder
from aliquot.agent.core.samples import DeviceEvent, DeviceInfo, LoadSample, MemorySample, ProcessList, ProcessSample
from aliquot.agent.devices.base import BackendUnavailable, DeviceError, DeviceLost
from aliquot.agent.devices.events import EventWatcher
from aliquot.agent.devices.guard import DeviceGuard, DeviceHung
from aliquot.agent.devices.nvml_processes import ProcessLists
from aliquot.agent.processes.cgroups import CgroupTree
from aliquot.common.addresses import MAX_HINTS_IN_A_ROW, Addresses
from aliquot.common.backoff import Backoff
from aliquot.common.kernel_files import Mount, find_mount
from tests.agent.coordinator import Coordinator
from tests.agent.foreign_cgroups import why_no_tree
from tests.agent.harness import GIB, ROOT, Node, auntil, closing, desired, make_node
from tests.agent.test_enforcement_on_processes import grant
from tests.devices.recorder import Recorder
from tests.devices.replay import Frame, ReplayBackend, Sample, Trace, read_trace

REPLAYING = ("-m", "tests.agent.replaying_agent")
INFO = DeviceInfo("GPU-a", 0, "NVIDIA A100", "A100-40", "nvidia", 40 * GIB, GIB)


async def test_a_call_that_hangs_holds_only_its_device() -> None:
    guard = DeviceGuard(timeout_s=0.1)
    release = threading.Event()
    with pytest.raises(DeviceHung):
        await guard.run("a", release.wait)
    assert guard.stuck == {"a"}
    with pytest.raises(DeviceHung):
        await guard.run("a", lambda: 1)
    assert await guard.run("b", lambda: 2) == 2
    release.set()
    await auntil(lambda: not guard.stuck, "the lost call has come back")
    assert await guard.run("a", lambda: 3) == 3
    guard.close()


async def test_calls_waiting_behind_one_that_hangs_are_told() -> None:
    guard = DeviceGuard(timeout_s=0.1)
    release = threading.Event()
    results = await asyncio.gather(*(guard.run("a", release.wait) for _ in range(4)), return_exceptions=True)
    assert all(isinstance(result, DeviceHung) for result in results)
    release.set()
    await auntil(lambda: not guard.stuck, "the lost call has come back")
    assert await guard.run("a", lambda: "well") == "well"
    guard.close()


async def test_errors_of_a_call_reach_who_asked() -> None:
    guard = DeviceGuard(timeout_s=5)

    def lost() -> None:
        raise DeviceLost("gone")

    with pytest.raises(DeviceLost):
        await guard.run("a", lost)
    guard.close()


def test_a_trace_plays_as_it_was_recorded(tmp_path: Path) -> None:
    now = [0]
    original = ReplayBackend(
        Trace(
            (INFO,),
            (
                Frame(0, {"GPU-a": Sample(memory=MemorySample(40 * GIB, GIB, 0), load=LoadSample(gpu_percent=5))}),
                Frame(100, {"GPU-a": Sample(processes=ProcessList((ProcessSample(7, None),)))}),
                Frame(200, {"GPU-a": Sample(lost=True)}, (DeviceEvent("GPU-a", 79),)),
                Frame(300, {"GPU-a": Sample(memory=MemorySample(40 * GIB, GIB, GIB))}),
            ),
        ),
        lambda: now[0],
    )
    recorder = Recorder(original, lambda: now[0])
    recorder.open()
    recorder.discover()

    def look(backend: Recorder | ReplayBackend) -> list[object]:
        seen: list[object] = []
        for ask in (backend.memory, backend.processes, backend.load):
            try:
                seen.append(ask("GPU-a"))
            except DeviceError as error:
                seen.append(type(error))
        return [*seen, list(backend.wait_events(0))]

    times = (0, 50, 150, 250, 350)
    first = []
    for at in times:
        now[0] = at
        first.append(look(recorder))
    recorder.write(tmp_path / "trace.json")
    now[0] = 0
    again = ReplayBackend(read_trace(tmp_path / "trace.json"), lambda: now[0])
    again.open()
    second = []
    for at in times:
        now[0] = at
        second.append(look(again))
    assert first == second
    assert first[3][0] is DeviceLost
    assert first[3][3] == [DeviceEvent("GPU-a", 79)]
    assert first[4][0] == MemorySample(40 * GIB, GIB, GIB)


async def test_a_storm_of_one_event_keeps_no_other_from_being_heard() -> None:
    storm = (*[DeviceEvent("GPU-a", 45)] * 5_000, DeviceEvent("GPU-a", 79))
    backend = ReplayBackend(Trace((INFO,), (Frame(0), Frame(0, events=storm))), lambda: 0)
    heard: dict[int, int] = {}
    ready = asyncio.Event()

    async def take(event: DeviceEvent, times: int) -> None:
        await ready.wait()  # whoever takes them is slow
        heard[event.xid] = heard.get(event.xid, 0) + times

    watcher = EventWatcher(backend, take)
    running = asyncio.create_task(watcher.run())
    asyncio.get_running_loop().call_later(0.2, ready.set)
    await auntil(lambda: heard == {45: 5_000, 79: 1}, "all were counted, and the other heard")
    running.cancel()
    assert await watcher.gone()


@pytest.mark.parametrize("text", ["", "[]", '{"format": "else", "version": 1, "devices": [], "frames": []}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(BackendUnavailable):
        read_trace(path)
    with pytest.raises(BackendUnavailable):
        read_trace(tmp_path / "missing.json")


async def test_an_agent_runs_on_a_trace(node: Node, coordinator: Coordinator, tmp_path: Path) -> None:
    memory = MemorySample(40 * GIB, GIB, 3 * GIB)
    sample = Sample(memory=memory, processes=ProcessList((ProcessSample(2**22 + 5, 3 * GIB),)))
    path = tmp_path / "trace.json"
    recorder = Recorder(ReplayBackend(Trace((INFO,), (Frame(0, {"GPU-a": sample}),))))
    recorder.open()
    recorder.discover()
    recorder.memory("GPU-a")
    recorder.processes("GPU-a")
    recorder.write(path)
    node.program = REPLAYING
    await grant(node, coordinator, desired("GPU-a"), flags=("--devices", f"replay:{path}"))
    assert coordinator.snapshots[0].node.devices[0].foreign_bytes == 3 * GIB


@pytest.mark.root("to cut cards")
async def test_mig_instances_are_devices_of_their_own(tmp_path: Path, coordinator: Coordinator) -> None:
    for node in closing(make_node(tmp_path / "mig", ("A100-40", "T4"))):
        created = await asyncio.to_thread(_partition, node)
        await asyncio.to_thread(node.start, coordinator.address)
        await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
        card, plain = node.uuids
        told = {device.uuid: device for device in coordinator.snapshots[0].node.devices}
        assert card not in told, "a card in MIG mode can't be leased as a whole"
        assert told[plain].model == "T4"
        parts = [device for device in told.values() if device.parent_uuid == card]
        assert sorted(part.mig_profile for part in parts) == sorted(created)
        assert all(part.model == "A100-40" for part in parts)
        assert all(0 < part.memory_total_bytes < 40 * GIB for part in parts)
        assert not any(part.HasField("fabric_island") for part in parts)


def _partition(node: Node) -> list[str]:
    """Two instances on the first card, made through NVML as an administrator's tool would."""
    node.scenario.set_mig_mode(0, enabled=True)
    program = (
        "import json, pynvml as n\n"
        "n.nvmlInit()\n"
        "h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "for kind in (n.NVML_GPU_INSTANCE_PROFILE_3_SLICE, n.NVML_GPU_INSTANCE_PROFILE_1_SLICE):\n"
        "    p = n.nvmlDeviceGetGpuInstanceProfileInfo(h, kind, version=2)\n"
        "    g = n.nvmlDeviceCreateGpuInstance(h, p.id)\n"
        "    c = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(g, kind, 0)\n"
        "    n.nvmlGpuInstanceCreateComputeInstance(g, c.id)\n"
        "print(json.dumps(['3g.20gb', '1g.5gb']))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=node.base_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return list(json.loads(ran.stdout))


HYBRID = """24 23 0:22 / /sys rw - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
"""
CONTAINER = "99 88 0:30 /docker/abc /sys/fs/cgroup\\040x ro,nosuid - cgroup2 cgroup rw,nsdelegate\n"


def test_the_hierarchy_is_found_where_it_is_mounted() -> None:
    assert find_mount(HYBRID) == Mount(Path("/sys/fs/cgroup/unified"), "/")
    inside = find_mount(CONTAINER)
    assert inside == Mount(Path("/sys/fs/cgroup x"), "/docker/abc")
    assert inside.directory_of("/docker/abc/x") == Path("/sys/fs/cgroup x/x")
    assert inside.directory_of("/docker/abcd") is None
    assert find_mount(CONTAINER + HYBRID) == Mount(Path("/sys/fs/cgroup/unified"), "/")
    assert find_mount("35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n") is None


@pytest.mark.root("to make cgroups")
def test_leaves_follow_processes_and_are_found_again() -> None:
    if problem := why_no_tree():
        pytest.skip(problem)
    tree = CgroupTree.open("test-tree")
    holder = Holder("l-1", 3, 2)
    process = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
    try:
        tree.add(process.pid, holder)
        assert process.pid in tree.members(holder)
        assert dict(CgroupTree.open("test-tree").holders()) == {tree.path_of(holder): holder}
        tree.remove(holder)
        assert tree.directory_of(holder).exists(), "one that is in use stays"
        tree.put_back(process.pid, "/")
        assert process.pid not in tree.members(holder)
    finally:
        process.kill()
        process.wait()
        for pid in tree.members(holder):
            os.kill(pid, 9)
        while tree.members(holder):
            pass
        tree.remove(holder)
        tree.close()
    assert not tree.directory_of(holder).parent.exists()


def test_addresses_follow_referrals_but_not_in_circles() -> None:
    ring = Addresses(["a:1", "b:1"])
    assert ring.take() == "a:1"
    ring.leader_is("c:1")
    assert [ring.referred] == [True]
    assert ring.take() == "c:1"
    assert ring.take() == "b:1"
    ring.worked("c:1")
    assert [ring.referred] == [False], "a leader that was lost is tried again, but not without waiting"
    assert ring.take() == "c:1"
    followed = 0
    for _ in range(50):
        ring.leader_is("x:1")
        followed += ring.referred
        ring.take()
    assert followed == MAX_HINTS_IN_A_ROW
    ring.waited()
    ring.leader_is("y:1")
    assert ring.take() == "y:1", "who leads later may not be on the list: the hint must count again"
    ring.worked("b:1")
    assert ring.take() == "b:1"


def test_waits_grow_are_spread_and_bounded() -> None:
    class Highest:
        def uniform(self, a: float, b: float, /) -> float:
            return b

    steady = Backoff(random=Highest())
    waits = [steady.next_s() for _ in range(steady.quick + 10)]
    assert waits == sorted(waits)
    assert set(waits[: steady.quick]) == {steady.base_s}, "a failover must not be slept through"
    assert waits[-1] == steady.most_s
    steady.succeeded()
    assert steady.next_s() == waits[0]
    spread = {Backoff().next_s() for _ in range(20)}
    assert len(spread) == 20
    assert 5 <= Backoff().next_s(at_least_s=5) <= 10


async def test_devices_that_are_gone_leave_no_threads_and_a_stuck_one_is_not_doubled() -> None:
    def threads() -> int:
        return sum("MIG-" in thread.name for thread in threading.enumerate())

    guard = DeviceGuard(0.1)
    release = threading.Event()
    for number in range(20):
        assert await guard.run(f"MIG-{number}", lambda: 1) == 1
        assert await guard.run(f"mps MIG-{number}", lambda: 2) == 2
        guard.forget(f"MIG-{number}")
    await auntil(lambda: not threads(), "their threads have ended")
    with pytest.raises(DeviceHung):
        await guard.run("MIG-stuck", release.wait)
    guard.forget("MIG-stuck")
    with pytest.raises(DeviceHung):
        await guard.run("MIG-stuck", lambda: 3)
    assert threads() == 1
    release.set()
    guard.close()


class Lists:
    """A driver's lists of processes, which counts how often each was read."""

    def __init__(self) -> None:
        self.calls = 0
        self.lists: dict[str, list[tuple[int, int]]] = {}
        self.read: Counter[str] = Counter()

    def offers(self, uuid: str, symbol: str) -> bool:
        return True

    def ask(self, uuid: str, symbol: str, *rest: object) -> list[tuple[int, int]]:
        kind = symbol.removeprefix("nvmlDeviceGet").partition("RunningProcesses")[0]
        self.read[kind] += 1
        return self.lists.get(kind, [])


def test_memory_that_nobody_accounts_for_has_every_list_read() -> None:
    """A program that only draws must not hold what it likes for as long as its empty list is not read again."""
    driver: Any = Lists()
    lists = ProcessLists(driver)
    driver.lists["Compute"] = [(7, 2 * GIB)]
    for used_bytes in (2 * GIB, 2 * GIB + (50 << 20), 2 * GIB):
        assert [sample.pid for sample in lists.read("GPU-a", None, 40 * GIB, used_bytes).processes] == [7]
    assert driver.read == {"Compute": 3, "Graphics": 1, "MPSCompute": 1}
    driver.lists["Graphics"] = [(8, 30 * GIB)]
    found = lists.read("GPU-a", None, 40 * GIB, 32 * GIB)
    assert [sample.pid for sample in found.processes] == [7, 8]
    driver.lists["Graphics"] = []
    for _ in range(3):
        lists.read("GPU-a", None, 40 * GIB, 32 * GIB)
    assert driver.read == {"Compute": 7, "Graphics": 3, "MPSCompute": 2}, "what stays unexplained is asked for once"
