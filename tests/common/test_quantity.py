"""Quantities are Kubernetes', exact, and read back as they were written."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.errors import QuantityError
from aliquot.common.quantity import (
    ByteSize,
    exact_decimal,
    format_bytes,
    format_milli,
    human_bytes,
    parse_bytes,
    parse_milli,
    parse_quantity,
    suggest_suffix,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "value_bytes"),
    [
        ("10Gi", 10 * GIB),
        ("8G", 8 * 10**9),
        ("1.5Gi", 3 * GIB // 2),
        ("1024M", 1_024_000_000),
        ("1e9", 10**9),
        ("1E9", 10**9),
        ("1E", 10**18),
        ("12e-1k", None),
        ("1.2e1", 12),
        ("100k", 100_000),
        ("100Ki", 102_400),
        ("0", 0),
        ("128974848", 128_974_848),
        ("123Mi", 128_974_848),
        ("128974848000m", 128_974_848),
        ("+5", 5),
        (".5Ki", 512),
        ("5.", 5),
        ("1Ei", 1 << 60),
        ("-0", 0),
    ],
)
def test_bytes_are_read_as_kubernetes_reads_them(text: str, value_bytes: int | None) -> None:
    if value_bytes is None:
        with pytest.raises(QuantityError):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == value_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Gi",
        "10GB",
        "10gi",
        "10 Gi",
        "1,5Gi",
        "1.2.3",
        "0x10",
        "nan",
        "inf",
        "1e",
        "--1",
        "٣Gi",
        ".",
        "1e31",
        "1K",
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(text)
    assert caught.value.reason == "INVALID_QUANTITY"


def test_a_mistaken_unit_is_answered_with_what_to_write() -> None:
    with pytest.raises(QuantityError) as caught:
        parse_bytes("10GB")
    assert caught.value.hint == "write 10G or 10Gi"


@pytest.mark.parametrize(
    ("unit", "meant"),
    [
        ("GB", ("G", "Gi")),
        ("gib", ("Gi",)),
        ("gi", ("Gi",)),
        ("K", ("k", "Ki")),
        ("kb", ("k", "Ki")),
        ("mb", ("M", "Mi")),
        ("t", ("T", "Ti")),
        ("b", ()),
        ("", ()),
        ("xi", ()),
        ("apples", ()),
    ],
)
def test_units_that_may_have_been_meant(unit: str, meant: tuple[str, ...]) -> None:
    assert suggest_suffix(unit) == meant


@pytest.mark.parametrize("text", ["1" * 65, "9" * 5000, "1e999999999"])
def test_endless_quantities_are_refused_without_work(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)


def test_fractions_are_refused_unless_rounding_is_asked_for() -> None:
    with pytest.raises(QuantityError, match="not a whole number of bytes"):
        parse_bytes("100500m")
    assert parse_bytes("100500m", round_up=True) == 101
    with pytest.raises(QuantityError, match="thousandths"):
        parse_milli("100u")
    assert parse_milli("100u", round_up=True) == 1


def test_negative_amounts_are_refused() -> None:
    assert parse_quantity("-1.5") == Fraction(-3, 2)
    with pytest.raises(QuantityError, match="negative"):
        parse_bytes("-1Gi")
    with pytest.raises(QuantityError, match="negative"):
        parse_milli("-500m")


@pytest.mark.parametrize(("text", "milli"), [("500m", 500), ("0.5", 500), ("2", 2000), ("1e1", 10_000), ("0.001", 1)])
def test_cpu_is_read_in_thousandths(text: str, milli: int) -> None:
    assert parse_milli(text) == milli


@pytest.mark.parametrize(
    ("value_bytes", "text"),
    [
        (0, "0"),
        (500, "500"),
        (1000, "1k"),
        (1024, "1Ki"),
        (10 * GIB, "10Gi"),
        (8 * 10**9, "8G"),
        (3 * GIB // 2, "1.5Gi"),
        (1000 << 20, "1000Mi"),
        (1_024_000, "1024k"),
        (999_424, "976Ki"),
        (1_500_000, "1.5M"),
    ],
)
def test_bytes_are_written_as_short_as_exactness_allows(value_bytes: int, text: str) -> None:
    assert format_bytes(value_bytes) == text


@given(st.integers(0, 1 << 70))
def test_written_bytes_read_back_exactly(value_bytes: int) -> None:
    assert parse_bytes(format_bytes(value_bytes)) == value_bytes
    assert str(ByteSize(value_bytes)) == format_bytes(value_bytes)
    suffixed = format_bytes(value_bytes, bare=False)
    assert suffixed[-1].isalpha()
    assert parse_bytes(suffixed) == value_bytes


@given(st.integers(0, 10**9))
def test_written_thousandths_read_back_exactly(milli: int) -> None:
    assert parse_milli(format_milli(milli)) == milli
    assert exact_decimal(format_milli(milli)) == Fraction(milli, 1000)


def test_negative_amounts_are_not_written() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_bytes(-1)
    with pytest.raises(ValueError, match="negative"):
        format_milli(-1)


@pytest.mark.parametrize(
    ("value_bytes", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1Ki"),
        (10 * GIB, "10Gi"),
        (85_163_769_037, "79.3Gi"),
        ((1 << 30) - 1, "1Gi"),
        (-3 * GIB // 2, "-1.5Gi"),
        (1 << 80, f"{1 << 20}Ei"),
    ],
)
def test_bytes_for_people(value_bytes: int, text: str) -> None:
    assert human_bytes(value_bytes) == text


@given(st.integers(0, 1 << 62))
def test_bytes_for_people_are_off_by_a_twentieth_of_their_unit_at_most(value_bytes: int) -> None:
    text = human_bytes(value_bytes)
    if text.endswith("B"):
        assert text == f"{value_bytes}B"
    else:
        unit = parse_quantity("1" + text[-2:])
        assert abs(parse_quantity(text) - value_bytes) * 20 <= unit


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_quantity(text)
    except QuantityError as error:
        assert error.message
