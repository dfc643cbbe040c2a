"""Several processes on one device: memory they share is booked once, and together they never get more than there is."""

from __future__ import annotations

import array
import os
import socket
from pathlib import Path

from tests.polling import eventually
from tests.simgpu.conftest import GIB, MIB, Machine

CONTEXT = 418 * MIB
OUT_OF_MEMORY = 2


def test_memory_opened_by_ipc_is_booked_on_its_owner(machine: Machine) -> None:
    owner, user = machine.child(), machine.child()
    owner.eval("cu.context()")
    user.eval("cu.context()")
    _, pointer = owner.eval("cu.malloc(1 << 30)")
    code, handle = owner.eval(f"cu.ipc_handle({pointer})")
    assert code == 0
    code, opened = user.eval(f"cu.ipc_open('{handle}')")
    assert code == 0
    assert machine.processes() == {owner.pid: CONTEXT + GIB, user.pid: CONTEXT}
    assert machine.used() == 2 * CONTEXT + GIB
    assert user.eval(f"cu.free({opened})") != 0
    assert user.eval(f"cu.call('cuIpcCloseMemHandle', ctypes.c_uint64({opened}))") == 0
    assert owner.eval(f"cu.free({pointer})") == 0
    assert machine.used() == 2 * CONTEXT
    assert user.eval(f"cu.ipc_open('{handle}')[0]") != 0


def test_shared_memory_passes_to_the_holder_that_is_left(machine: Machine) -> None:
    owner, user = machine.child(), machine.child()
    owner.eval("cu.context()")
    user.eval("cu.context()")
    _, pointer = owner.eval("cu.malloc(1 << 30)")
    _, handle = owner.eval(f"cu.ipc_handle({pointer})")
    user.eval(f"cu.ipc_open('{handle}')")
    owner.kill()
    assert machine.processes() == {user.pid: CONTEXT + GIB}
    assert machine.used() == CONTEXT + GIB
    user.kill()
    assert machine.used() == 0


def test_a_process_cannot_open_its_own_handle_or_a_made_up_one(machine: Machine) -> None:
    owner = machine.child()
    owner.eval("cu.context()")
    _, pointer = owner.eval("cu.malloc(4096)")
    _, handle = owner.eval(f"cu.ipc_handle({pointer})")
    assert owner.eval(f"cu.ipc_open('{handle}')[0]") == 201
    assert owner.eval(f"cu.ipc_open('{'00' * 64}')[0]") == 1


def test_exported_physical_memory_is_booked_once(machine: Machine) -> None:
    owner, user = machine.child(), machine.child()
    owner.eval("cu.context()")
    user.eval("cu.context()")
    _, handle = owner.eval("cu.create(1 << 30)")
    code, descriptor = owner.eval(f"cu.export({handle})")
    assert code == 0
    descriptor_path = f"/proc/{owner.pid}/fd/{descriptor}"
    code, imported = user.eval(f"cu.import_fd(os.open('{descriptor_path}', os.O_RDONLY))")
    assert code == 0
    assert machine.used() == 2 * CONTEXT + GIB
    assert owner.eval(f"cu.call('cuMemRelease', ctypes.c_uint64({handle}))") == 0
    assert machine.processes() == {owner.pid: CONTEXT + GIB, user.pid: CONTEXT}, "the descriptor holds it"
    owner.exec(f"os.close({descriptor})")
    assert owner.eval("cu.call('cuCtxSynchronize')") == 0
    assert machine.processes() == {owner.pid: CONTEXT, user.pid: CONTEXT + GIB}
    assert user.eval(f"cu.call('cuMemRelease', ctypes.c_uint64({imported}))") == 0
    assert machine.used() == 2 * CONTEXT


def test_external_memory_is_not_booked_again(machine: Machine) -> None:
    owner, user = machine.child(), machine.child()
    owner.eval("cu.context()")
    user.eval("cu.context()")
    _, handle = owner.eval("cu.create(1 << 30)")
    _, descriptor = owner.eval(f"cu.export({handle})")
    user.exec(
        f"""
import struct
fd = os.open('/proc/{owner.pid}/fd/{descriptor}', os.O_RDONLY)
description = struct.pack('=iiiiiiQ68x4x', 1, 0, fd, 0, 0, 0, 1 << 30)
buffer = ctypes.create_string_buffer(description, 104)
code, external = cu.out('cuImportExternalMemory', buffer)
mapped, pointer = cu.out('cuExternalMemoryGetMappedBuffer', ctypes.c_void_p(external),
                         ctypes.create_string_buffer(struct.pack('=QQ72x', 0, 1 << 20), 88))
"""
    )
    assert user.eval("[code, mapped, cu.free(pointer)]") == [0, 0, 0]
    assert machine.used() == 2 * CONTEXT + GIB
    assert user.eval("cu.call('cuDestroyExternalMemory', ctypes.c_void_p(external))") == 0
    assert machine.processes()[owner.pid] == CONTEXT + GIB


def test_descriptors_travel_through_sockets(machine: Machine) -> None:
    owner, user = machine.child(), machine.child()
    owner.eval("cu.context()")
    user.eval("cu.context()")
    _, handle = owner.eval("cu.create(2 << 20)")
    _, descriptor = owner.eval(f"cu.export({handle})")
    ours, theirs = socket.socketpair()
    with ours, theirs, Path(f"/proc/{owner.pid}/fd/{descriptor}").open("rb") as file:
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))])
        _, ancillary, _, _ = theirs.recvmsg(1, socket.CMSG_SPACE(4))
        received = array.array("i", ancillary[0][2])[0]
        path = f"/proc/{os.getpid()}/fd/{received}"
        assert user.eval(f"cu.import_fd(os.open('{path}', os.O_RDONLY))[0]") == 0
        os.close(received)


def test_processes_racing_for_the_last_byte_never_get_more_than_there_is(machine: Machine) -> None:
    """Four processes take and give without pause; the sum of what they were granted never exceeds the device."""
    racers = [machine.child() for _ in range(4)]
    for racer in racers:
        assert racer.eval("cu.context()") == 0
    device = machine.scenario.device(0)
    for number, racer in enumerate(racers):
        racer.start(
            f"""
import random, time
random.seed({number})
held, refused, end = [], 0, time.monotonic() + 2
while time.monotonic() < end:
    code, pointer = cu.malloc(random.choice([1 << 20, 1 << 28, 5 << 30]))
    if code == 0:
        held.append(pointer)
    else:
        assert code == {OUT_OF_MEMORY}
        refused += 1
        for _ in range(random.randrange(1, 5)):
            if held:
                assert cu.free(held.pop(random.randrange(len(held)))) == 0
""",
            "exec",
        )
    for _ in range(200):
        now = machine.scenario.device(0)
        assert now.used_bytes <= device.total_bytes - device.reserved_bytes
    for racer in racers:
        racer.finish()
        assert racer.eval("refused") > 0
    for racer in racers:
        racer.exec("[cu.free(p) for p in held]")
    assert machine.used() == 4 * CONTEXT


def test_threads_of_one_process_race_as_safely(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    job.exec(
        """
import threading
total = cu.info()[1]
granted = []
def take():
    context = ctypes.c_void_p()
    cu.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cu.lib.cuCtxSetCurrent(context)
    while True:
        code, pointer = cu.malloc(64 << 20)
        if code:
            return
        granted.append(pointer)
threads = [threading.Thread(target=take) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
"""
    )
    assert job.eval("len(granted) == len(set(granted)) == total // (64 << 20)")


def test_killed_in_the_middle_of_it_leaves_the_books_in_order(machine: Machine) -> None:
    watcher = machine.child()
    watcher.eval("cu.context()")
    for _ in range(8):
        victim = machine.child()
        assert victim.eval("cu.context()") == 0
        victim.start("[cu.free(cu.malloc(1 << 20)[1]) for _ in range(10 ** 9)]")
        eventually(lambda: victim.pid in machine.processes())  # noqa: B023 - called at once
        victim.kill()
        assert machine.processes() == {watcher.pid: CONTEXT}
        assert machine.used() == CONTEXT
        assert watcher.eval("cu.free(cu.malloc(1 << 30)[1])") == 0
