"""Whose turn it is on a simulated card: processes take turns, whatever each has queued."""

from __future__ import annotations

from tests.simgpu.conftest import Machine

MS = 1_000_000
BEGIN = """
from aliquot.simgpu.cuda import SPIN_KERNEL, Cuda
cuda = Cuda()
kernel = cuda.load_kernel(SPIN_KERNEL, "spin")
"""
QUEUE = """
for _ in range({times}):
    cuda.launch(kernel, {each_ns})
"""


def used_ns(machine: Machine) -> dict[int, int]:
    return {process.pid: process.used_ns for process in machine.scenario.devices()[0].processes}


def test_a_process_does_not_wait_for_all_that_another_has_queued(machine: Machine) -> None:
    greedy, modest = machine.child(), machine.child()
    for child in (greedy, modest):
        child.exec(BEGIN)
    greedy.exec(QUEUE.format(times=30, each_ns=1000 * MS))
    modest.exec(QUEUE.format(times=100, each_ns=2 * MS) + "cuda.synchronize()")
    used = used_ns(machine)
    assert used[modest.pid] == 200 * MS
    assert 199 * MS <= used[greedy.pid] < 15_000 * MS, "it had as much until then, not all that it wants"


def test_turns_are_of_processes_not_of_tenants(machine: Machine) -> None:
    children = [machine.child() for _ in range(4)]
    for child in children:
        child.exec(BEGIN)
    for child in children:
        child.exec(QUEUE.format(times=20, each_ns=1000 * MS))
    before = used_ns(machine)
    children[0].exec("cuda.allocate(1 << 20)")
    children[0].exec(
        "import ctypes, time\nevent = ctypes.c_void_p()\ncuda.call('cuEventCreate', ctypes.byref(event), 0)\n"
        "for _ in range(20):\n    time.sleep(0.01)\n    cuda.library.cuStreamQuery(None)\n"
    )
    gained = [used_ns(machine)[child.pid] - before[child.pid] for child in children]
    assert max(gained) > 0
    assert max(gained) - min(gained) <= max(gained) // 50, "all get the same"


def test_what_is_alone_has_all_and_its_work_is_done_when_it_says(machine: Machine) -> None:
    child = machine.child()
    child.exec(BEGIN + QUEUE.format(times=10, each_ns=5 * MS))
    child.exec("cuda.synchronize()")
    assert used_ns(machine) == {child.pid: 50 * MS}
    assert child.eval("cuda.library.cuStreamQuery(None)") == 0
