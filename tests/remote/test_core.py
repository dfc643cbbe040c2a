"""The pure core: words, layouts, accounts and recordings. None of it needs PyTorch."""

from __future__ import annotations

import contextlib
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.remote.core import language, messages
from aliquot.remote.core.accounting import Account, OutOfMemory
from aliquot.remote.core.layouts import LayoutError, contiguous_stride, count, extent, overlaps
from aliquot.remote.core.recording import NotRepeatable, Shape, compare, read, rename, shape_of
from aliquot.remote.core.words import (
    FREE,
    StreamError,
    float_words,
    int_words,
    pack,
    unpack,
    words_float,
    words_int,
)

sizes = st.lists(st.integers(0, 5), max_size=4)


@given(st.lists(st.integers(0, (1 << 32) - 1)))
def test_words_come_back_as_they_were(words: list[int]) -> None:
    width, data = pack(words)
    assert unpack(width[0], data) == words
    assert width == (b"\x02" if all(word < 1 << 16 for word in words) else b"\x04")


@given(st.binary(), st.integers(0, 255))
def test_any_bytes_are_words_or_refused(data: bytes, width: int) -> None:
    try:
        words = unpack(width, data)
    except StreamError:
        assert width not in (2, 4) or len(data) % width
    else:
        assert len(words) * width == len(data)


@given(st.floats(allow_nan=True), st.integers(-(1 << 63), (1 << 63) - 1))
def test_scalars_come_back_to_the_bit(real: float, whole: int) -> None:
    back = words_float(float_words(real), 0)
    assert struct.pack("<d", back) == struct.pack("<d", real) or (math.isnan(back) and math.isnan(real))
    assert words_int([1, *int_words(whole)], 1) == whole
    with pytest.raises(StreamError):
        words_int(int_words(whole), 1)
    with pytest.raises(StreamError):
        words_float([1 << 16, 0, 0, 0], 0)


@given(sizes)
def test_a_contiguous_layout_is_dense_and_reaches_what_it_holds(shape: list[int]) -> None:
    stride = contiguous_stride(shape)
    assert extent(shape, stride) == count(shape)
    assert not overlaps(shape, stride)


@given(sizes, st.data())
def test_no_element_lies_past_the_extent(shape: list[int], data: st.DataObject) -> None:
    stride = [data.draw(st.integers(0, 7)) for _ in shape]
    places = [0]
    for size, step in zip(shape, stride, strict=True):
        places = [place + index * step for place in places for index in range(size)]
    assert extent(shape, stride) == (max(places) + 1 if places else 0)
    if len(set(places)) < len(places):
        assert overlaps(shape, stride)


@pytest.mark.parametrize(
    ("shape", "stride"),
    [([2], []), ([-1], [1]), ([2], [-1]), ([1 << 40, 1 << 40], [1 << 40, 1]), ([1] * 65, [1] * 65), ([1 << 49], [1])],
)
def test_layouts_that_no_tensor_may_have(shape: list[int], stride: list[int]) -> None:
    with pytest.raises(LayoutError):
        extent(shape, stride)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60))))
def test_accounts_hold_what_was_charged_and_never_more_than_the_limit(steps: list[tuple[bool, int]]) -> None:
    account = Account(100)
    held: list[int] = []
    for is_charge, number in steps:
        if is_charge:
            try:
                account.charge(number)
            except OutOfMemory as error:
                assert sum(held) + number > 100
                assert error.asked_bytes == number
            else:
                held.append(number)
        elif held:
            account.refund(held.pop(number % len(held)))
        assert account.used_bytes == sum(held) <= account.peak_bytes <= 100
        assert account.allocations == len(held)


@given(st.binary(max_size=200), st.integers(0, 255))
def test_any_bytes_are_a_message_or_refused(data: bytes, kind: int) -> None:
    with contextlib.suppress(language.MessageError):
        messages.decode(bytes((kind,)) + data)


SHAPES = {
    2: Shape("make", 3, (), (2,)),
    3: Shape("add", 5, (2, 3), (4,)),
    4: Shape("write", 4, (2, 3), ()),
}


def test_a_step_is_the_same_whatever_its_handles_are_called() -> None:
    first = read([2, 7, 50, 3, 8, 9, 50, 51, FREE, 50, 4, 9, 9, 51, FREE, 51], SHAPES)
    second = read([2, 7, 60, 3, 8, 9, 60, 50, 4, 9, 9, 50, FREE, 50, FREE, 60], SHAPES)
    compare(first, second, SHAPES)
    words, own = rename(second, SHAPES, set(), iter(range(100, 110)).__next__)
    assert words == [2, 7, 100, 3, 8, 9, 100, 101, 4, 9, 9, 101, FREE, 101, FREE, 100]
    assert own == [100, 101]


def test_what_lives_on_keeps_its_handle_and_state_is_not_let_go() -> None:
    step = read([FREE, 30, 2, 7, 50, FREE, 50, 3, 8, 9, 9, 50], SHAPES)
    words, own = rename(step, SHAPES, {50}, iter(range(100, 110)).__next__)
    assert words == [2, 7, 100, FREE, 100, 3, 8, 9, 9, 50]
    assert own == [100]


def test_steps_that_differ_say_where() -> None:
    step = read([3, 8, 9, 9, 50], SHAPES)
    for other, reason in (
        ([4, 8, 9, 9], "came where"),
        ([3, 8, 9, 5, 50], "another tensor"),
        ([3, 8, 9, 9, 50, 4, 8, 9, 9], "operators"),
    ):
        with pytest.raises(NotRepeatable, match=reason):
            compare(step, read(other, SHAPES), SHAPES)
    with pytest.raises(NotRepeatable, match="replaced"):
        read([3, 8, 9, 9, 50, FREE, 9], SHAPES)


def test_the_shape_of_a_template_says_where_handles_are() -> None:
    tensor = messages.TensorArg("float32", (2,), (1,))
    shifted = messages.TensorArg("float32", (2,), (1,), shifted=True)
    template = messages.Template(
        2,
        "aten::x",
        [tensor, messages.FloatArg(), messages.ListArg([shifted, tensor]), messages.ConstArg(1)],
        {"other": tensor},
        [messages.Result("float32", (2,), (1,)), None],
    )
    assert shape_of(template) == Shape("aten::x", 15, (2, 7, 12, 13), (14,))
