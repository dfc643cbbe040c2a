"""Sessions of one part share its memory, to the byte, whatever engine each has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from aliquot.remote.core import language, messages
from aliquot.remote.core.channel import Engine
from aliquot.remote.core.words import pack
from aliquot.remote.operators import digest
from aliquot.remote.server import memory, pytorch
from aliquot.remote.server.doorkeeper import Part

LIMIT = 4096


class Client:
    """Of one session: makes tensors of bytes."""

    def __init__(self, make: Callable[[Callable[[bytes], None]], Engine]) -> None:
        self.answers: list[msgspec.Struct] = []
        self.engine = make(lambda frame: self.answers.append(messages.decode(frame)))
        self._say(messages.Hello(1, str(torch.__version__), digest()))
        welcome = self.answers.pop()
        assert isinstance(welcome, messages.Welcome)
        assert welcome.memory_bytes == LIMIT

    def _say(self, message: msgspec.Struct) -> None:
        self.engine.handle(language.encode(message))

    def make(self, handle: int, size: int) -> messages.Fault | None:
        arguments: list[messages.Arg] = [messages.NumbersArg([size])]
        named: dict[str, messages.Arg] = {
            "dtype": messages.NamedArg("dtype", "uint8"),
            "device": messages.DeviceArg(),
        }
        self._say(messages.Template(5, "aten::ones", arguments, named, [messages.Result("uint8", (size,), (1,))]))
        self._stream(5, 0, handle)
        if not self.answers:
            return None
        fault = self.answers.pop()
        assert isinstance(fault, messages.Fault)
        self._say(messages.Resume(fault.fault))
        return fault

    def call(self, request: int, handle: int) -> messages.Reply:
        """As `make`, one byte, by who waits for the result."""
        named: dict[str, messages.Arg] = {
            "dtype": messages.NamedArg("dtype", "uint8"),
            "device": messages.DeviceArg(),
        }
        template = messages.Template(6, "aten::ones", [messages.NumbersArg([1])], named, [])
        self._say(messages.Call(request, 0, template, [], [handle]))
        reply = self.answers.pop()
        assert isinstance(reply, messages.Reply)
        return reply

    def free(self, handle: int) -> None:
        self._stream(0, handle)

    def numbers(self) -> dict[str, int]:
        self._say(messages.Mark(1, statistics=True))
        reply = self.answers.pop()
        assert isinstance(reply, messages.Reply)
        return reply.numbers

    def _stream(self, *words: int) -> None:
        width, data = pack(list(words))
        self.engine.handle(b"\x02" + width + data)


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.setenv("ALIQUOT_SIMGPU", "as if")
    return Part("l-1.1.0", 0, "GPU-1", LIMIT, 250, "l-1", "research")


def test_two_clients_share_a_parts_memory(part: Part) -> None:
    one, other = (Client(partial(pytorch.make, part)) for _ in range(2))
    assert one.make(1, LIMIT - 1000) is None
    assert other.make(1, 999) is None
    fault = other.make(2, 2)
    assert fault is not None
    assert (fault.reason, fault.asked_bytes, fault.used_bytes) == ("out_of_memory", 2, LIMIT - 1)
    assert other.make(2, 1) is None
    fault = one.make(2, 1)
    assert fault is not None
    assert fault.used_bytes == LIMIT
    assert (one.numbers()["used_bytes"], one.numbers()["part_used_bytes"]) == (LIMIT - 1000, LIMIT)
    one.free(1)
    assert other.make(3, LIMIT - 1000) is None
    other.engine.close()
    assert one.numbers()["part_used_bytes"] == 0
    assert one.make(1, LIMIT) is None
    one.engine.close()
    assert part.budget.used_bytes == 0


def test_another_part_is_another_budget(part: Part) -> None:
    elsewhere = Part("l-1.1.1", 1, "GPU-2", LIMIT, 250, "l-1", "research")
    one, other = (Client(partial(pytorch.make, of)) for of in (part, elsewhere))
    assert one.make(1, LIMIT) is None
    assert other.make(1, LIMIT) is None


def test_what_is_let_go_is_kept_by_the_two_thresholds_of_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: dict[int, int] = {}

    def mallopt(parameter: int, value: int) -> int:
        set_to[parameter] = value
        return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    assert memory.keep_freed.__wrapped__(), "asked anew"
    m_trim_threshold, m_mmap_threshold = -1, -3  # malloc.h
    assert set_to == {m_trim_threshold: 1 << 30, m_mmap_threshold: 256 << 20}


def test_a_session_tells_how_many_calls_were_waited_for(part: Part) -> None:
    client = Client(partial(pytorch.make, part))
    engine: Any = client.engine
    before = engine.figures()["waits"]
    for request in range(1, 4):
        client.call(request, request)
    assert engine.figures()["waits"] - before == 3
