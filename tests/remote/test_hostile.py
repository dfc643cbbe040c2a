"""Clients that say anything: the engine answers, holds exactly what it says that it holds, and serves on."""

from __future__ import annotations

import os
import random

import msgspec
import pytest
import torch

from aliquot.remote.core import language, messages
from aliquot.remote.core.bounds import DEFINITIONS_BYTES_MAX
from aliquot.remote.core.messages import DATA_HEADER, Kind
from aliquot.remote.core.words import FREE, float_words, int_words, pack
from aliquot.remote.operators import allowed, digest
from aliquot.remote.server.engine import Settings, TorchEngine, engine_factory

LIMIT = 1 << 16
FRAMES = int(os.environ.get("ALIQUOT_REMOTE_FRAMES", "4000"))


class Client:
    """Says what it likes, and sees all answers."""

    def __init__(self) -> None:
        self.answers: list[msgspec.Struct] = []
        self.chunks: list[bytes] = []
        made = engine_factory(Settings(memory_bytes=LIMIT, threads=1))(self.answer)
        assert isinstance(made, TorchEngine)
        self.engine = made
        self.say(messages.Hello(1, str(torch.__version__), digest()))
        assert isinstance(self.answers.pop(), messages.Welcome)

    def answer(self, frame: bytes) -> None:
        if frame[0] == Kind.CHUNK:
            self.chunks.append(frame)
        else:
            self.answers.append(messages.decode(frame))

    def say(self, message: msgspec.Struct) -> None:
        self.engine.handle(language.encode(message))

    def stream(self, *words: int) -> None:
        width, data = pack(list(words))
        self.engine.handle(b"\x02" + width + data)

    def fault(self) -> messages.Fault:
        """The one fault that was answered; the session goes on behind it."""
        (fault,) = [answer for answer in self.answers if isinstance(answer, messages.Fault)]
        self.answers.clear()
        self.say(messages.Resume(fault.fault))
        return fault

    def make(self, handle: int, shape: tuple[int, ...] = (4,)) -> None:
        self.say(
            messages.Template(
                5,
                "aten::ones",
                [messages.NumbersArg(list(shape))],
                {"dtype": messages.NamedArg("dtype", "float32"), "device": messages.DeviceArg()},
                [messages.Result("float32", shape, (1,))],
            )
        )
        self.stream(5, 0, handle)

    def check(self) -> None:
        """The account is the sum of what is held, within the limit."""
        store = self.engine.store
        held = [each.number_bytes for each in store.allocations.values()]
        assert store.account.used_bytes == sum(held) <= LIMIT
        assert store.account.allocations == len(held)
        for each in store.allocations.values():
            assert each.tensor.untyped_storage().nbytes() == each.number_bytes


@pytest.fixture
def client() -> Client:
    return Client()


def template(operator: str, *args: messages.Arg, results: int = 1, **kwargs: messages.Arg) -> messages.Template:
    return messages.Template(6, operator, list(args), kwargs, [messages.Result("float32", (4,), (1,))] * results)


FOUR = messages.TensorArg("float32", (4,), (1,))


@pytest.mark.parametrize(
    "name",
    [
        "aten::from_file",
        "aten::save",
        "aten::set_.source_Storage",
        "prim::Print",
        "os::system",
        "aten::nothing",
        "aten::_print",
    ],
)
def test_operators_outside_the_list_are_refused(client: Client, name: str) -> None:
    client.make(1)
    client.say(template(name, messages.ConstArg("/etc/passwd")))
    client.stream(6, 7, 2, FREE, 1)
    fault = client.fault()
    assert (fault.reason, fault.site) == ("not_allowed", 7)
    assert client.engine.store.account.allocations == 0, "what stands behind it is read: 1 was let go"
    assert name not in allowed()


def test_no_operator_of_the_list_takes_a_path_or_an_address() -> None:
    for name in allowed():
        assert not any(part in name for part in ("file", "storage", "data_ptr", "print", "dlpack")), name


def test_views_past_an_allocation_are_refused(client: Client) -> None:
    client.make(1)
    wide = messages.TensorArg("float32", (4,), (2,), shifted=True)
    client.say(template("aten::neg", wide))
    client.stream(6, 0, 1, *int_words(0), 2)
    assert client.fault().reason == "malformed"
    for offset in (1, -1, 1 << 62, -(1 << 63)):
        client.say(template("aten::neg", messages.TensorArg("float32", (4,), (1,), shifted=True)))
        client.stream(6, 0, 1, *int_words(offset), 2)
        assert client.fault().reason == "malformed"
    client.say(messages.Fetch(1, 0, 1, "float64", (4,), (1,), 0))
    assert client.fault().reason == "malformed"
    client.say(messages.Fetch(2, 0, 1, "float32", (1 << 40,), (0,), 0))
    assert client.fault().reason == "malformed"
    client.say(template("aten::as_strided", FOUR, messages.NumbersArg([8]), messages.NumbersArg([1])))
    client.stream(6, 0, 1, 2)
    client.fault()
    assert not client.chunks
    client.check()


def test_handles_of_nothing_and_handles_in_use(client: Client) -> None:
    client.make(1)
    client.say(template("aten::neg", FOUR))
    client.stream(6, 0, 99, 2)
    assert client.fault().reason == "dropped"
    client.stream(6, 0, 1, 1)
    assert client.fault().reason == "dropped"
    client.stream(6, 0, 1, 1 << 31)
    assert client.fault().reason == "dropped"
    client.stream(6, 0, 1)
    assert client.fault().reason == "malformed"
    client.stream(0, 77, 0, 1, 0, 1)
    client.check()
    assert client.engine.store.account.used_bytes == 0


def test_oversized_counts(client: Client) -> None:
    client.say(messages.Template(6, "aten::cat", [messages.ListArg([FOUR] * 20000)], {}, []))
    client.stream(6, 0)
    assert client.fault().reason == "malformed"
    client.say(messages.Template(1 << 40, "aten::neg", [FOUR], {}, []))
    assert client.fault().reason == "malformed"
    client.say(messages.Graph(0, 1 << 60, [], []))
    client.answers.clear()
    client.say(messages.Graph(0, 1, [messages.Node("aten::neg", [messages.ValueArg(5)])], [messages.ValueArg(1)]))
    assert client.fault().reason == "malformed"
    client.say(messages.Record(1, -1, b"\x00\x00", 2, []))
    assert client.fault().reason == "malformed"
    client.engine.handle(DATA_HEADER.pack(Kind.DATA, 1, (1 << 64) - 1) + b"x" * 100)
    client.fault()
    client.check()


def test_definitions_are_kept_up_to_a_bound_and_the_session_goes_on(client: Client) -> None:
    numbers, words = messages.NumbersArg([1.5] * 100_000), bytes(900_000)  # nearly as large as a frame may be

    def said(number: int) -> tuple[msgspec.Struct, msgspec.Struct, msgspec.Struct]:
        return (
            messages.Template(number, "aten::neg", [numbers]),
            messages.Graph(number, 1, [messages.Node("aten::neg", [numbers])], []),
            messages.Record(0, number, words, 2, []),
        )

    fit = DEFINITIONS_BYTES_MAX // sum(len(language.encode(each)) for each in said(6))
    for number in range(6, 6 + fit):
        for each in said(number):
            client.say(each)
    for each in said(6):
        client.say(each)
    assert not any(isinstance(answer, messages.Fault) for answer in client.answers), "in its place it takes no more"
    for number in (200, 201):
        for each in said(number)[number - 200 :]:
            client.say(each)
    assert "operators, graphs and captured steps" in client.fault().message
    client.say(messages.Record(0, 200, b"", 2, []))
    client.say(messages.Record(0, 6, b"", 2, []))
    client.say(messages.Template(250, "aten::neg", [FOUR]))
    client.say(said(6)[2])
    assert not any(isinstance(answer, messages.Fault) for answer in client.answers)
    client.check()


def test_an_operator_that_would_take_more_than_the_lease_is_not_run(client: Client) -> None:
    client.make(1)
    huge = LIMIT
    client.say(
        messages.Template(
            6, "aten::repeat", [FOUR, messages.NumbersArg([huge])], {}, [messages.Result("float32", (4 * huge,), (1,))]
        )
    )
    client.stream(6, 0, 1, 2)
    fault = client.fault()
    assert (fault.reason, fault.asked_bytes, fault.used_bytes, fault.limit_bytes) == (
        "out_of_memory",
        16 * huge,
        16,
        LIMIT,
    )
    client.check()


def test_a_recording_that_replays_itself_ends(client: Client) -> None:
    width, data = pack([1, 0, 3])
    client.say(messages.Record(1, 3, data, width[0], []))
    client.stream(1, 0, 3)
    client.say(messages.Mark(9))
    assert any(isinstance(answer, messages.Reply) and answer.request == 9 for answer in client.answers)


def _random_arg(chance: random.Random, depth: int = 0) -> messages.Arg:
    kind = chance.randrange(9)
    shape = tuple(chance.choice((0, 1, 2, 3, 4, 7, -1, 1 << 33)) for _ in range(chance.randrange(3)))
    stride = tuple(chance.choice((0, 1, 2, 4, -1, 1 << 40)) for _ in shape)
    if kind < 4:
        tame = chance.random() < 0.7
        return (
            FOUR
            if tame
            else messages.TensorArg(chance.choice(("float32", "int64", "x")), shape, stride, chance.random() < 0.5)
        )
    if kind == 4:
        return messages.FloatArg()
    if kind == 5:
        return messages.IntArg()
    if kind == 6:
        return messages.NumbersArg([chance.choice((0, 1, 2, -1, 3, 2.5)) for _ in range(chance.randrange(4))])
    if kind == 7 and depth < 3:
        return messages.ListArg([_random_arg(chance, depth + 1) for _ in range(chance.randrange(4))])
    return messages.ConstArg(chance.choice((None, True, 0, 1, -1, 0.5, "mean", 3)))


_NAMES = [
    *(
        "aten::add.Tensor",
        "aten::mul_.Tensor",
        "aten::neg",
        "aten::cat",
        "aten::mm",
        "aten::index.Tensor",
        "aten::select.int",
    ),
    *(
        "aten::as_strided",
        "aten::sum",
        "aten::gather",
        "aten::index_put_",
        "aten::embedding",
        "aten::stack",
        "aten::sort",
    ),
    *(
        "aten::native_dropout",
        "aten::bernoulli_.float",
        "aten::expand",
        "aten::view",
        "aten::scatter_.src",
        "aten::topk",
    ),
    *(
        "aten::_foreach_add_.Scalar",
        "aten::zeros",
        "aten::repeat",
        "aten::arange",
        "aten::linear",
        "aliquot::lstm_cell",
    ),
    *("aten::unfold", "aten::gather_backward", "aten::take", "aten::put_", "aten::from_file", "graph::0"),
]


def test_frames_of_any_kind(client: Client) -> None:
    """Mutated templates, streams, messages and bytes; the account is exact behind each."""
    chance = random.Random(int(os.environ.get("ALIQUOT_REMOTE_SEED", "14")))
    corpus: list[bytes] = []
    for number in range(FRAMES):
        kind = chance.randrange(10)
        if kind < 3:
            message: msgspec.Struct = messages.Template(
                chance.choice((2, 3, 4, 5, 6, 7, 0, 1)),
                chance.choice(_NAMES),
                [_random_arg(chance) for _ in range(chance.randrange(5))],
                {},
                [messages.Result("float32", (4,), (1,))] * chance.randrange(3),
            )
            frame = language.encode(message)
        elif kind < 7:
            words: list[int] = []
            for _ in range(chance.randrange(8)):
                words += [chance.randrange(9), 0, *(chance.randrange(12) for _ in range(chance.randrange(4)))]
                if chance.random() < 0.2:
                    words += chance.choice((float_words(0.5), int_words(chance.choice((0, 1, -1, 1 << 62)))))
            width, data = pack(words)
            frame = b"\x02" + width + data
        elif kind == 7:
            frame = language.encode(
                chance.choice(
                    (
                        messages.Fetch(
                            number, 0, chance.randrange(12), "float32", (4,), (1,), chance.choice((0, 1, -5))
                        ),
                        messages.Record(number, chance.randrange(300), b"\x01\x00\x00\x00\x02\x00", 2, [1, 2]),
                        messages.Hashed(number, [(chance.randrange(12), b"x" * 32)]),
                        messages.Graph(
                            0,
                            2,
                            [messages.Node("aten::mul.Tensor", [messages.ValueArg(0), messages.ValueArg(1)])],
                            [messages.ValueArg(2)],
                        ),
                        messages.Call(number, 0, template("aten::nonzero", FOUR, results=0), [1], [8]),
                        messages.Random(number, b"123"),
                        messages.Seed(number),
                    )
                )
            )
        elif kind == 8 and corpus:
            mutable = bytearray(chance.choice(corpus))
            for _ in range(chance.randrange(1, 4)):
                mutable[chance.randrange(len(mutable))] = chance.randrange(256)
            frame = bytes(mutable[: chance.randrange(len(mutable) + 1)])
        else:
            frame = DATA_HEADER.pack(Kind.DATA, chance.randrange(12), chance.choice((0, 8, 1 << 40))) + b"\x01" * 8
        if frame:
            corpus = [*corpus[-50:], frame]
        client.engine.handle(frame)
        for answer in client.answers:
            if isinstance(answer, messages.Fault) and chance.random() < 0.9:
                client.engine.handle(language.encode(messages.Resume(answer.fault)))
        client.answers.clear()
        client.chunks.clear()
        client.check()
        if number % 50 == 0:
            client.engine.handle(language.encode(messages.Resume(client.engine._fault)))
            for handle in range(12):
                client.stream(0, handle)
            client.make(1)
            client.make(2)
            client.answers.clear()
    client.engine.close()
    assert client.engine.store.account.used_bytes == 0


def test_results_that_are_larger_than_said_are_not_made(client: Client) -> None:
    client.make(1)
    client.say(template("aten::repeat", FOUR, messages.NumbersArg([1 << 30])))
    client.stream(6, 0, 1, 2)
    assert client.fault().reason == "mispredicted"
    client.say(template("aten::arange", messages.IntArg(), device=messages.DeviceArg()))
    client.stream(6, 0, *int_words(4), 2)
    client.answers.clear()
    client.say(messages.Resume(client.engine._fault))
    client.stream(6, 0, *int_words(1 << 40), 3)
    assert client.fault().reason in ("mispredicted", "malformed")
    client.say(messages.Call(5, 0, template("aten::repeat", FOUR, messages.NumbersArg([1 << 30]), results=0), [1], [8]))
    assert client.fault().reason == "out_of_memory"
    client.check()
