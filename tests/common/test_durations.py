"""Durations say their unit, and read back as they were written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.duration import MAX_DURATION_MS, DurationMs, format_duration_ms, parse_duration_ms
from aliquot.common.errors import DurationError


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250ms", 250),
        ("5s", 5000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("1.5s", 1500),
        ("0.001s", 1),
        ("0s", 0),
        (" 5s ", 5000),
        ("1d2h3m4s5ms", 93_784_005),
    ],
)
def test_a_duration_is_read(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "s",
        "-5s",
        "5 s",
        "5sec",
        "1s1h",
        "1s1s",
        "0.0001s",
        "1e3s",
        "99999999d",
        "1" * 100 + "s",
        "٣s",
        "5s\x00",
    ],
)
def test_what_is_no_duration_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(DurationError) as caught:
        parse_duration_ms(text)
    assert caught.value.hint
    assert len(str(caught.value)) < 200


def test_a_bare_number_is_asked_for_its_unit() -> None:
    with pytest.raises(DurationError) as caught:
        parse_duration_ms("5")
    assert caught.value.hint == "did you mean 5s or 5ms?"


@given(st.integers(0, MAX_DURATION_MS))
def test_a_written_duration_reads_back(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration_ms(duration_ms)) == duration_ms
    assert str(DurationMs(duration_ms)) == format_duration_ms(duration_ms)


@pytest.mark.parametrize(
    ("duration_ms", "text"), [(0, "0s"), (5, "5ms"), (1500, "1s500ms"), (5_400_000, "1h30m"), (86_400_000, "1d")]
)
def test_a_duration_is_written_short(duration_ms: int, text: str) -> None:
    assert format_duration_ms(duration_ms) == text


def test_a_negative_duration_is_not_written() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_duration_ms(-1)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert parse_duration_ms(text) >= 0
    except DurationError as error:
        assert error.reason == "INVALID_DURATION"
