"""The raw lane, attacked: on the simulated driver, whose kernels compute."""

from __future__ import annotations

from threading import Lock

import msgspec

from aliquot.remote.core import driving, language
from aliquot.remote.core.accounting import Budget
from aliquot.remote.core.driving import IMAGE_HEADER, WRITE_HEADER, Kind
from aliquot.remote.server.driving import Broken, DriverEngine
from aliquot.remote.server.things import Memory, Module
from aliquot.simgpu.cuda import KNOWN_KERNELS
from tests.remote_fuzz.fuzzing import SECRET
from tests.remote_fuzz.making import WHOLE, Maker

LIMIT = 1 << 20
_HANDLES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 30, 31)
_NAMES_OF_HANDLES = ("handle", "to", "source", "module", "function", "stream", "event", "start", "end")
_SIZES = (0, 1, 2, 4, 8, 16, 60, 64, 100, 1000, 4096, 1 << 16)
_MESSAGES = (
    *(driving.Allocate, driving.Drop, driving.Read, driving.Copy, driving.Fill),
    *(driving.Load, driving.Function, driving.Variable, driving.Launch, driving.Launch, driving.Launch),
    *(driving.Stream, driving.Event, driving.Record, driving.Await, driving.Synchronize, driving.Query),
    *(driving.Elapsed, driving.Statistics, driving.Attribute, driving.Resume),
)
_VARIABLES = b".version 7.0\n.global .b8 table[64];\n.visible .entry nothing() { ret; }\n"
_GRID = (1, 1, 1, 2, 32, 0, -1, 1 << 31)


class Driving:
    """See `fuzzing.Target`."""

    def __init__(self) -> None:
        self.numbers: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(_NAMES_OF_HANDLES, _HANDLES),
            **dict.fromkeys(("size", "offset", "to_offset", "source_offset", "count"), _SIZES),
            "unit": (1, 2, 4, 4, 3, 0), "priority": (0, -1, 5), "grid": _GRID, "block": _GRID,
            "values": (*_HANDLES, 64),
            "shared_bytes": (0, 0, 1024, -1), "request": tuple(range(50)), "fault": (1, 2, 3), "value": (0, 1, 255, -1),
        }  # fmt: skip
        self.words: dict[str, tuple[str, ...]] = {
            "name": ("saxpy", "dot", "record", "nothing", "table", "", "a\0b", "é"),
            "parameters": ("pointer", "u32", "f32", "u8", "u16", "i32", "f64", "bytes:12:4", "bytes:0:0", "x", "u64"),
        }
        self.budget = Budget(LIMIT, Lock())
        self._other = Session(self)
        self._other.say(language.encode(driving.Allocate(1, 1, len(SECRET))))
        self._other.say(WRITE_HEADER.pack(Kind.WRITE, 1, 0, 0) + SECRET)
        self._other.answers()

    def attacked(self) -> Session:
        """A session with some memory, two modules and kernels."""
        made = Session(self)
        for handle, size in ((1, 64), (2, 4096), (3, 1000)):
            made.say(language.encode(driving.Allocate(0, handle, size)))
        for handle, image in ((20, KNOWN_KERNELS), (21, _VARIABLES)):
            made.say(IMAGE_HEADER.pack(Kind.IMAGE, handle) + image)
            made.say(language.encode(driving.Load(0, handle)))
        made.say(language.encode(driving.Function(0, 30, 20, "saxpy", ["pointer", "pointer", "f32", "u32"])))
        made.say(language.encode(driving.Function(0, 31, 20, "dot", ["pointer", "pointer", "pointer", "u32"])))
        made.answers()
        return made

    def bystander(self) -> str:
        """See `fuzzing.Target`."""
        self._other.say(language.encode(driving.Read(7, 1, 0, len(SECRET))))
        return "" if any(SECRET in each for each in self._other.answers()) else "somebody else's memory has changed"

    def close(self) -> str:
        """See `fuzzing.Target`."""
        self._other.close()
        return f"{self.budget.used_bytes} bytes are left in the budget" if self.budget.used_bytes else ""


class Session:
    """See `fuzzing.Attacked`."""

    def __init__(self, of: Driving) -> None:
        self._budget = of.budget
        self._before = of.budget.used_bytes
        self._answers: list[bytes] = []
        self._engine = DriverEngine(self._answers.append, 0, "GPU-1", of.budget, broken=lambda: None)
        self.say(language.encode(driving.Open(driving.PROTOCOL)))

    def frame(self, maker: Maker) -> bytes:
        """See `fuzzing.Attacked`."""
        chance = maker.chance
        kind = chance.randrange(20)
        handle, stream = chance.choice(_HANDLES), chance.choice((0, 0, 8))
        data = chance.randbytes(chance.choice((0, 1, 8, 60, 64, 512)))
        offset = chance.choice((*_SIZES, (1 << 64) - 1))
        if kind == 0:
            return WRITE_HEADER.pack(Kind.WRITE, handle, stream, offset) + data
        if kind == 1 and chance.random() < 0.3:
            image = chance.choice((KNOWN_KERNELS, _VARIABLES, _elf(maker), b"\x50\xed\x55\xba" + chance.randbytes(40)))
            return IMAGE_HEADER.pack(Kind.IMAGE, chance.choice(_HANDLES)) + image
        if kind == 2:
            values = [[chance.choice((1, 2, 3)), chance.choice((0, 4, 60, 64))] for _ in range(2)]
            tail = [chance.choice((0.5, 1)), chance.choice((1, 4, 15))]
            return language.encode(driving.Launch(30, (1, 1, 1), (1, 1, 1), [*values, *tail]))
        message: msgspec.Struct = maker.message(chance.choice(_MESSAGES))
        try:
            return language.encode(message)
        except OverflowError:
            return b"\xff"

    def say(self, frame: bytes) -> None:
        """See `fuzzing.Attacked`. A kernel that reads outside takes the session along, as it should."""
        try:
            self._engine.handle(frame)
        except Broken:
            self.forgive()

    def answers(self) -> list[bytes]:
        """See `fuzzing.Attacked`."""
        found = list(self._answers)
        self._answers.clear()
        return found

    def forgive(self) -> None:
        """See `fuzzing.Attacked`."""
        self._engine.handle(language.encode(driving.Resume(self._engine._fault)))

    def exact(self) -> str:
        """See `fuzzing.Attacked`."""
        things = self._engine._things
        assert things is not None
        held = sum(each.size for each in things._things.values() if isinstance(each, Memory) and each.module is None)
        held += sum(each.charged_bytes for each in things._things.values() if isinstance(each, Module))
        account = self._engine.account
        if not account.used_bytes == held == self._budget.used_bytes - self._before <= LIMIT:
            return f"{held} bytes are held, {account.used_bytes} charged, {self._budget.used_bytes} of the budget used"
        return ""

    def close(self) -> str:
        """See `fuzzing.Attacked`."""
        self._engine.close()
        return "" if self._budget.used_bytes == self._before else "a session has left something behind"


def _elf(maker: Maker) -> bytes:
    """A cubin's head with any numbers in it."""
    head = bytearray(b"\x7fELF\x02" + bytes(123))
    for at, size in ((32, 8), (40, 8), (54, 2), (56, 2), (58, 2), (60, 2), (68, 4), (88, 8), (96, 8)):
        number = maker.chance.choice((0, 0, 1, 56, 64, 64, 128, *WHOLE)) % (1 << 8 * size)
        head[at : at + size] = number.to_bytes(size, "little")
    return bytes(head)
