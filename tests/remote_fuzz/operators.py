"""PyTorch's operators, attacked."""

from __future__ import annotations

import msgspec
import torch

from aliquot.remote.core import language, messages
from aliquot.remote.core.accounting import Budget
from aliquot.remote.core.messages import DATA_HEADER, Kind
from aliquot.remote.core.words import float_words, int_words, pack
from aliquot.remote.operators import digest
from aliquot.remote.server.engine import Settings, TorchEngine, engine_factory
from tests.remote_fuzz.fuzzing import SECRET
from tests.remote_fuzz.making import WHOLE, Maker

LIMIT = 1 << 16
_HANDLES = tuple(range(12))
_TEMPLATES = (2, 3, 4, 5, 6, 7, 8, 0, 1)
_MESSAGES = (
    *(messages.Template,) * 6,
    *(messages.Call, messages.Fetch, messages.Fetch, messages.Mark, messages.Seed, messages.Record, messages.Hashed),
    *(messages.Graph, messages.Blob, messages.Random, messages.Resume),
)
_FOUR = messages.TensorArg("float32", (4,), (1,))
_OPERATORS = (
    "aten::add.Tensor aten::mul_.Tensor aten::neg aten::cat aten::mm aten::index.Tensor aten::select.int aten::sum "
    "aten::as_strided aten::gather aten::index_put_ aten::embedding aten::stack aten::sort aten::native_dropout "
    "aten::bernoulli_.float aten::expand aten::view aten::scatter_.src aten::topk aten::_foreach_add_.Scalar "
    "aten::zeros aten::ones aten::repeat aten::arange aten::linear aliquot::lstm_cell aten::unfold aten::take "
    "aten::put_ aten::from_file aten::_print aten::set_.source_Storage graph::0 graph::1 prim::Print"
)


class Operators:
    """See `fuzzing.Target`."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        shapes = (0, 1, 2, 2, 4, 4, 4, 8, -1, 1 << 40)
        self.numbers: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(("handle", "handles", "kept", "items"), _HANDLES),
            "number": _TEMPLATES, "shape": shapes, "stride": (1, 1, 1, 2, 0, 4, -1, 1 << 40), "value": (*shapes, 3),
            "values": (0, 1, 2, 4, 3, -1), "offset": (0, 0, 0, 1, 2, -1, 1 << 61), "words": (*_HANDLES, 0, 16384),
            "request": tuple(range(40)), "site": (0, 1), "width": (2, 2, 4, 3), "fault": (1, 2), "item": (-1, 0, 1),
            "inputs": (0, 1, 2), "seed": (*WHOLE,),
        }  # fmt: skip
        self.words: dict[str, tuple[str, ...]] = {
            "operator": tuple(_OPERATORS.split()), "dtype": ("float32",) * 6 + ("int64", "bool", "x"),
            "kind": ("dtype", "layout", "memory_format", "x"), "name": ("float32", "int64", "strided", "x"),
            "value": ("mean", "", "/etc/passwd"),
        }  # fmt: skip
        self.budget = Budget(LIMIT)
        self._other = Session(self)
        self._other.make(1, (len(SECRET),), "uint8")
        self._other.say(DATA_HEADER.pack(Kind.DATA, 1, 0) + SECRET)
        self._other.answers()

    def attacked(self) -> Session:
        """A session with some tensors."""
        made = Session(self)
        for handle, shape in ((1, (4,)), (2, (4,)), (3, (2, 2)), (4, (8,))):
            made.make(handle, shape, "float32")
        made.say(
            language.encode(messages.Template(6, "aten::neg", [_FOUR], {}, [messages.Result("float32", (4,), (1,))]))
        )
        made.answers()
        return made

    def bystander(self) -> str:
        """See `fuzzing.Target`."""
        self._other.say(language.encode(messages.Fetch(7, 0, 1, "uint8", (len(SECRET),), (1,), 0)))
        return "" if any(SECRET in each for each in self._other.answers()) else "somebody else's tensor has changed"

    def close(self) -> str:
        """See `fuzzing.Target`."""
        self._other.close()
        return f"{self.budget.used_bytes} bytes are left in the budget" if self.budget.used_bytes else ""


class Session:
    """See `fuzzing.Attacked`."""

    def __init__(self, of: Operators) -> None:
        self._budget = of.budget
        self._before = of.budget.used_bytes
        self._answers: list[bytes] = []
        made = engine_factory(Settings(budget=of.budget, threads=1, blobs_bytes=1 << 16))(self._answers.append)
        assert isinstance(made, TorchEngine)
        self._engine = made
        self.say(language.encode(messages.Hello(1, str(torch.__version__), digest())))

    def make(self, handle: int, shape: tuple[int, ...], dtype: str) -> None:
        """A tensor of ones."""
        stride = messages.Result(dtype, shape, tuple(torch.empty(shape, device="meta").stride()))
        named: dict[str, messages.Arg] = {"dtype": messages.NamedArg("dtype", dtype), "device": messages.DeviceArg()}
        self.say(
            language.encode(messages.Template(5, "aten::ones", [messages.NumbersArg(list(shape))], named, [stride]))
        )
        self._stream([5, 0, handle])

    def _stream(self, words: list[int]) -> None:
        self.say(_packed(words))

    def frame(self, maker: Maker) -> bytes:
        """See `fuzzing.Attacked`."""
        chance = maker.chance
        kind = chance.randrange(20)
        if kind < 9:
            words: list[int] = []
            for _ in range(chance.randrange(1, 8)):
                words += [chance.choice(_TEMPLATES), 0, *(chance.choice(_HANDLES) for _ in range(chance.randrange(4)))]
                if chance.random() < 0.2:
                    words += chance.choice((float_words(0.5), int_words(chance.choice((0, 1, -1, 1 << 62)))))
            return _packed(words)
        if kind < 11:
            words = []
            for _ in range(chance.randrange(1, 6)):
                words += chance.choice(
                    ([6, 0, chance.choice((1, 2)), chance.choice((7, 8))], [0, chance.choice((7, 8))])
                )
            return _packed(words)
        if kind == 11:
            offset = chance.choice((0, 0, 8, 15, 16, 1 << 40, (1 << 64) - 1))
            return DATA_HEADER.pack(Kind.DATA, chance.choice(_HANDLES), offset) + chance.randbytes(
                chance.choice((0, 4, 16))
            )
        message: msgspec.Struct = maker.message(chance.choice(_MESSAGES))
        try:
            return language.encode(message)
        except OverflowError:
            return b"\xff"

    def say(self, frame: bytes) -> None:
        """See `fuzzing.Attacked`."""
        self._engine.handle(frame)

    def answers(self) -> list[bytes]:
        """See `fuzzing.Attacked`."""
        found = list(self._answers)
        self._answers.clear()
        return found

    def forgive(self) -> None:
        """See `fuzzing.Attacked`."""
        self._engine.handle(language.encode(messages.Resume(self._engine._fault)))

    def exact(self) -> str:
        """See `fuzzing.Attacked`."""
        store = self._engine.store
        held = 0
        for each in store.allocations.values():
            held += each.number_bytes
            if each.tensor.untyped_storage().nbytes() != each.number_bytes:
                return "an allocation is not as large as it is charged"
        used = store.account.used_bytes
        if not used == held == self._budget.used_bytes - self._before <= LIMIT:
            return f"{held} bytes are held, {used} charged, {self._budget.used_bytes} of the budget used"
        return ""

    def close(self) -> str:
        """See `fuzzing.Attacked`."""
        self._engine.close()
        return "" if self._budget.used_bytes == self._before else "a session has left something behind"


def _packed(words: list[int]) -> bytes:
    width, data = pack(words)
    return b"\x02" + width + data
