"""The raw lane through its client: memory, copies, modules, launches, streams and events on the simulated driver."""

from __future__ import annotations

import gc
import struct

import pytest

from aliquot.remote.core import driving, language
from aliquot.remote.cuda import Device, Memory
from aliquot.remote.errors import RemoteDriverError, RemoteMemoryError
from aliquot.simgpu.cuda import KNOWN_KERNELS
from tests.remote_cuda.conftest import MEMORY_BYTES, Node

SAXPY = ["pointer", "pointer", "f32", "u32"]
RECORD = ["pointer", "u8", "u16", "i32", "f64", "bytes:12:4"]
MIB = 1 << 20


def floats(memory: Memory) -> list[float]:
    data = memory.read()
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def test_a_device_says_what_it_is(device: Device) -> None:
    assert "A100" in device.name
    assert device.memory_bytes == MEMORY_BYTES
    assert device.capability == (8, 0)
    assert device.driver_version >= 12000
    assert device.attributes["warp_size"] == 32
    assert device.attribute(10) == 32
    with pytest.raises(RemoteDriverError, match="no attribute"):
        device.attribute(1 << 40)


def test_bytes_go_up_and_come_down_in_pieces(device: Device) -> None:
    data = bytes(range(256)) * (3 * MIB // 256) + b"tail"
    with device.allocate(len(data) + 10) as memory:
        memory.fill(0)
        memory.write(data, 10)
        assert memory.read(10) == data
        assert memory.read(0, 12) == bytes(10) + data[:2]
        assert memory.read(5, 0) == b""


def test_copies_and_fills_on_the_device(device: Device) -> None:
    first, second = device.allocate(64), device.allocate(64)
    first.fill(0x01020304, unit=4)
    second.fill(0)
    second.copy_from(first, 8, offset=4, source_offset=1)
    expected = b"\x04\x03\x02\x01" * 16
    assert second.read() == bytes(4) + expected[1:9] + bytes(52)
    first.copy_from(first, 4, offset=60)
    first.fill(0xABCD, unit=2, count=1, offset=2)
    assert first.read(0, 6) == b"\x04\x03\xcd\xab\x04\x03"


def test_a_kernel_computes_on_memory_of_the_session(device: Device) -> None:
    x, y = device.allocate(16), device.allocate(32)
    x.write(struct.pack("<4f", 1, 2, 3, 4))
    y.write(struct.pack("<8f", *range(8)))
    saxpy = device.load(KNOWN_KERNELS).function("saxpy", SAXPY)
    saxpy.launch(1, 4, [y + 16, x, 0.5, 4])
    assert floats(y) == [0, 1, 2, 3, 4.5, 6, 7.5, 9]


def test_parameters_arrive_as_the_kernel_declares_them(device: Device) -> None:
    """Sizes, alignments, and the address in the place of a handle."""
    to = device.allocate(64)
    module = device.load(KNOWN_KERNELS)
    pair = struct.pack("<3i", 7, 8, 9)
    module.function("record", RECORD).launch((1, 1), (1, 1, 1), [to + 8, 200, 60000, -5, 0.25, pair])
    found = to.read(8, 44)
    address, small, short, whole, real = struct.unpack_from("<QBxHid", found)
    assert (small, short, whole, real) == (200, 60000, -5, 0.25)
    assert found[24:36] == pair
    module.function("record", RECORD).launch(1, 1, [to, 0, 0, 0, 0.0, pair])
    assert struct.unpack_from("<Q", to.read())[0] == address - 8


@pytest.mark.parametrize(
    "parameters",
    [["pointer"], [*SAXPY, "u32"], ["u64", "u64", "f64", "u32"], ["pointer", "pointer", "f32", "u64"], []],
)
def test_a_layout_that_is_not_the_kernels_is_refused(device: Device, parameters: list[str]) -> None:
    module = device.load(KNOWN_KERNELS)
    with pytest.raises(RemoteDriverError, match="has parameters at"):
        module.function("saxpy", parameters)
    module.function("saxpy", SAXPY)


@pytest.mark.parametrize("words", [["u128"], ["bytes:0:4"], ["bytes:12:3"], ["bytes:9999:4"], ["u8"] * 300])
def test_a_layout_of_no_kernel_is_refused_here(device: Device, words: list[str]) -> None:
    with pytest.raises(ValueError):
        device.load(KNOWN_KERNELS).function("saxpy", words)


@pytest.mark.parametrize(
    "arguments",
    [[None, None, 1.0], [None, None, 1.0, -1], [None, None, 1.0, 1 << 32], [None, None, 1.0, 1.5], [1, 2, 1.0, 4]],
)
def test_arguments_that_are_not_of_the_layout(device: Device, arguments: list[object]) -> None:
    """An address in place of memory among them."""
    kernel = device.load(KNOWN_KERNELS).function("saxpy", SAXPY)
    kernel.launch(1, 1, arguments)  # type: ignore[arg-type]
    with pytest.raises(RemoteDriverError, match="launch saxpy"):
        device.synchronize()


def test_streams_events_and_time(device: Device) -> None:
    spin = device.load(KNOWN_KERNELS).function("spin", ["u64"])
    stream, other = device.stream(), device.stream(priority=-1)
    start, end = device.event(), device.event()
    start.record(stream)
    spin.launch(1, 1, [30_000_000], stream=stream)
    end.record(stream)
    other.wait(end)
    assert not end.done()
    assert not stream.done()
    end.synchronize()
    assert end.done()
    assert start.elapsed_ms(end) >= 30
    other.synchronize()
    never = device.event()
    with pytest.raises(RemoteDriverError, match="not recorded"):
        start.elapsed_ms(never)
    start.close()
    with pytest.raises(ValueError, match="given back"):
        start.record()


def test_a_module_its_variables_and_its_end(device: Device) -> None:
    ptx = b".version 7.0\n.target sm_70\n.global .align 4 .b8 table[4096];\n.visible .entry nothing() { ret; }\n"
    module = device.load(ptx.decode())
    table = module.variable("table")
    assert table.size == 4096
    table.write(b"abc", 4093)
    assert table.read(4090) == b"\0\0\0abc"
    nothing = module.function("nothing", [])
    nothing.launch(1, 1, [])
    device.synchronize()
    with pytest.raises(RemoteDriverError):
        module.variable("other")
    with pytest.raises(RemoteDriverError):
        module.function("other", [])
    used = device.statistics()["used_bytes"]
    module.close()
    nothing.launch(1, 1, [])
    with pytest.raises(RemoteDriverError, match="no handle of a kernel"):
        device.synchronize()
    with pytest.raises(RemoteDriverError, match="no handle of memory"):
        table.read()
    assert used - device.statistics()["used_bytes"] == len(ptx)


def test_a_handle_that_is_used_again_is_not_taken_for_a_modules_part(node: Node) -> None:
    """Of a kernel that was let go before its module."""
    channel = node.channel()
    device = Device(channel)
    module = device.load(KNOWN_KERNELS)
    kernel = module.function("saxpy", SAXPY)
    channel.send(language.encode(driving.Drop(kernel._handle)))
    channel.send(language.encode(driving.Allocate(0, kernel._handle, 1000)))
    module.close()
    assert device.statistics()["used_bytes"] == 1000
    channel.send(language.encode(driving.Drop(kernel._handle)))
    assert device.statistics()["used_bytes"] == 0
    device.close()


@pytest.mark.parametrize("image", [b"", b"nothing at all", b"\x7fELF" + bytes(80), b"\x50\xed\x55\xba" + b"\xff" * 40])
def test_what_is_no_image(device: Device, image: bytes) -> None:
    with pytest.raises(RemoteDriverError):
        device.load(image)
    device.synchronize()


def test_memory_is_exact_at_the_byte_and_the_session_goes_on(device: Device) -> None:
    held = device.allocate(MEMORY_BYTES - 100)
    with pytest.raises(RemoteMemoryError) as caught:
        device.allocate(101)
    assert (caught.value.asked_bytes, caught.value.used_bytes) == (101, MEMORY_BYTES - 100)
    rest = device.allocate(100)
    assert device.memory_info() == (0, MEMORY_BYTES)
    held.close()
    assert device.memory_info() == (MEMORY_BYTES - 100, MEMORY_BYTES)
    del rest
    gc.collect()
    assert device.statistics()["used_bytes"] == 0
    assert device.statistics()["peak_bytes"] == MEMORY_BYTES


def test_an_error_stops_what_was_queued_behind_it(device: Device) -> None:
    memory = device.allocate(16)
    memory.fill(1)
    memory.write(b"12345", 12)
    memory.fill(2)
    with pytest.raises(RemoteDriverError, match="write: 5 bytes at 12"):
        memory.read()
    assert memory.read() == b"\1" * 16


def test_two_sessions_share_one_budget(node: Node) -> None:
    with node.device() as one, node.device() as other:
        held = one.allocate(MEMORY_BYTES - 1000)
        other_held = other.allocate(999)
        with pytest.raises(RemoteMemoryError) as caught:
            other.allocate(2)
        assert caught.value.used_bytes == MEMORY_BYTES - 1
        assert one.memory_info() == other.memory_info() == (1, MEMORY_BYTES)
        assert other.statistics()["used_bytes"] == 999
        held.close()
        one.synchronize()
        del other_held
        assert len(other.allocate(MEMORY_BYTES - 1).read(0, 4)) == 4


def test_another_sessions_handles_are_nobodys(node: Node) -> None:
    with node.device() as one, node.device() as other:
        secret = one.allocate(16)
        secret.write(b"s" * 16)
        one.synchronize()
        with pytest.raises(RemoteDriverError, match="no handle of memory"):
            Memory(other._link, secret.handle, 16).read()


def test_what_a_session_had_is_freed_when_it_ends(node: Node) -> None:
    with node.device() as watching:
        with node.device() as leaving:
            leaving.allocate(MEMORY_BYTES // 2)
            kept = leaving.allocate(1000)
            leaving.stream()
        for _ in range(1000):
            if watching.statistics()["part_used_bytes"] == 0:
                break
        assert watching.statistics()["part_used_bytes"] == 0
        kept.close()


def test_a_device_that_is_lost_ends_its_process(fresh: Node) -> None:
    """It can't be used again from there; the agent starts another one."""
    device, other = fresh.device(), fresh.device()
    small = device.allocate(16)
    kernel = device.load(KNOWN_KERNELS).function("saxpy", SAXPY)
    kernel.launch(1, 1, [small, small, 1.0, 1 << 30])
    with pytest.raises((RemoteDriverError, ConnectionError)):
        device.synchronize()
    assert fresh.process.wait(30) != 0
    with pytest.raises(ConnectionError):
        other.synchronize()


def test_a_question_with_a_number_that_no_answer_can_have(node: Node) -> None:
    channel = node.channel()
    device = Device(channel)
    memory = device.allocate(16)
    for request in (1 << 32, -1):
        channel.send(language.encode(driving.Read(request, memory.handle, 0, 16)))
        with pytest.raises(RemoteDriverError, match="no such message"):
            device.synchronize()
    assert memory.read() is not None
    device.close()
