"""Wrong requests: where the mistake is, what was expected there, and what was probably meant."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.request import RequestSyntaxError, format_request, parse_request


def mistake(text: str) -> RequestSyntaxError:
    with pytest.raises(RequestSyntaxError) as caught:
        parse_request(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "wrong", "suggestion"),
    [
        # Amounts.
        ("1.5", "1.5", "2x0.75"),
        ("2.5", "2.5", "4x0.625"),
        ("1.009", "1.009", "2"),
        ("1.0005", "1.0005", "2"),
        ("5000.5", "5000.5", None),
        ("0.0005", "0.0005", "0.001"),
        ("0.3333", "0.3333", "0.333"),
        ("0", "0", "1"),
        ("0.0", "0.0", "0.001"),
        ("0x0.5", "0", "1"),
        ("1025", "1025", None),
        ("2000x0.5", "2000", None),
        ("1.5x2", "1.5", None),
        ("2x3", "3", "6"),
        ("2x1.5", "1.5", None),
        ("-1", "-1", "1"),
        ("+1", "+1", "1"),
        ("-", "-", None),
        ("nan", "nan", None),
        ("-inf", "-inf", None),
        ("500m", "500m", "0.5, 500M or 500Mi"),
        ("5000m", "5000m", "5000M or 5000Mi"),
        ("50%", "50%", "0.5"),
        ("150%", "150%", None),
        (".5%", ".5%", None),
        ("2 gpus", "2 gpus", "2"),
        # Memory.
        ("10GB", "10GB", "10G or 10Gi"),
        ("10gib", "10gib", "10Gi"),
        ("10g", "10g", "10G or 10Gi"),
        ("10K", "10K", "10k or 10Ki"),
        ("0.5,10Mb", "10Mb", "10M or 10Mi"),
        ("1e9", "1e9", "1G"),
        ("1e+9", "1e+9", "1G"),
        ("1e400", "1e400", None),
        ("1e-1", "1e-1", None),
        ("0Gi", "0Gi", None),
        ("17Ti", "17Ti", None),
        ("1E", "1E", None),
        ("1.0001k", "1.0001k", None),
        ("10Gi5", "10Gi5", None),
        ("10Gi,20Gi", "20Gi", None),
        ("8,0.5", "8", "8G or 8Gi"),
        ("0.5,8", "8", "8G or 8Gi"),
        ("0.5,0.5", "0.5", None),
        ("2x10Gi,3", "3", None),
        ("2x10Gi,2x0.5", "2x0.5", None),
        # Names and brackets.
        ("A100", "A100", "1(A100)"),
        ("amd", "amd", "1(amd)"),
        ("2xA100", "2xA100", "2(A100)"),
        ("2 A100", "2 A100", "2(A100)"),
        ("2 nvidia", "2 nvidia", "2(nvidia)"),
        ("2x", "2x", None),
        ("2 apples", "2 apples", None),
        ("apples", "apples", None),
        ("0.5(A10O)", "A10O", "A100"),
        ("0.5(AlO)", "AlO", "A10"),
        ("1(nvdia)", "nvdia", "nvidia"),
        ("1(nvdia,V100)", "nvdia", "nvidia"),
        ("1(A100", "", None),
        ("1(", "", None),
        ("1()", ")", None),
        ("1(|A100)", "|", None),
        ("1(A100|)", ")", None),
        ("1(A100>", "", None),
        ("1(A100,,H100)", ",", None),
        ("1(A100,H100)", "H100", None),
        ("1(amd|A100)", "|", None),
        ("1(A100|amd)", "amd", None),
        ("1(nvidia,amd)", "amd", None),
        ("1(amd,V100)", "V100", None),
        ("1(V100,amd)", "amd", None),
        ("1(A100)(H100)", "(", None),
        ("1(A100),10Gi(A100)", "(", None),
        ("1((A100))", "(", None),
        (f"1({'X' * 65})", "X" * 65, None),
        ("1(" + "|".join(f"X{i}" for i in range(33)) + ")", "X32", None),
        ("1(" + ">".join(f"X{i}" for i in range(33)) + ")", "X32", None),
        # MIG.
        ("1g10gb", "1g10gb", "1g.10gb"),
        ("1g.10g", "1g.10g", "1g.10gb"),
        ("1g.", "1g.", None),
        ("0g.10gb", "0g.10gb", "2g.10gb"),
        ("1g.10gb,0.5", "0.5", None),
        ("10Gi,1g.10gb", "1g.10gb", None),
        ("1g.10gb,1g.10gb", "1g.10gb", None),
        ("1g.10gb(amd)", "1g.10gb", None),
        ("1g.10gb+foo", "1g.10gb+foo", "1g.10gb"),
        # The rest.
        ("", "", None),
        ("  ", "", None),
        (",", ",", None),
        ("2,", "", None),
        (",2", ",", None),
        ("1,000", "000", "1"),
        ("2)", ")", None),
        ("2;3", ";3", None),
        ("2 3", "3", None),
        ("2 (A100) x", "x", None),
        ("٣", "٣", None),
        ("0.5\x00", "\x00", None),
        ("9" * 257, "9", None),
    ],
)
def test_a_mistake_is_pointed_at(text: str, wrong: str, suggestion: str | None) -> None:
    error = mistake(text)
    assert text[error.position : error.end] == wrong
    assert error.suggestion == suggestion
    assert error.expected in str(error)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("1.5", "1.5\n^^^\nexpected whole GPUs, or one part below 1; did you mean 2x0.75?"),
        ("0.5(A10O),10Gi", "0.5(A10O),10Gi\n    ^^^^\nexpected a model; did you mean A100?"),
        ("2,", "2,\n  ^\nexpected an amount, such as 1, 0.25 or 10Gi"),
        # Full-width characters are two columns wide, and what can't be printed is replaced.
        ("１（Ａ１０Ｏ）", "１（Ａ１０Ｏ）\n    ^^^^^^^^\nexpected a model; did you mean A100?"),
        ("2\x07", "2\N{REPLACEMENT CHARACTER}\n ^\nexpected a comma, an opening bracket or the end"),
    ],
)
def test_the_caret_stands_under_the_mistake(text: str, rendered: str) -> None:
    error = mistake(text)
    assert error.render() == rendered
    assert error.explain() == rendered


def test_the_message_says_all_in_one_line() -> None:
    error = mistake("1.5")
    assert str(error) == "position 0, '1.5': expected whole GPUs, or one part below 1; did you mean 2x0.75?"
    assert error.hint == "write 2x0.75"
    assert error.reason == "REQUEST_SYNTAX"
    assert str(mistake("2,")).startswith("position 2, the end of the text: expected an amount")
    assert len(str(mistake("x" * 100_000))) < 200


def test_a_mistake_survives_the_way_between_processes() -> None:
    error = mistake("1.5")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, RequestSyntaxError)
    assert (str(copy), copy.position, copy.suggestion) == (str(error), error.position, error.suggestion)


@pytest.mark.parametrize(
    "text", ["1.5", "2x3", "0.3333", "0.0005", "-2", "1e9", "50%", "2 A100", "2xA100", "amd", "1g10gb"]
)
def test_a_suggestion_for_the_whole_text_can_be_followed(text: str) -> None:
    suggestion = mistake(text).suggestion
    assert suggestion is not None
    parse_request(suggestion)


_FRAGMENTS = st.one_of(
    st.sampled_from(list("012xX×()（）,，|>%m.+-e٣é \n")),
    st.sampled_from(["0.5", "1.5", "A100", "H100", "A10O", "G1", "nvidia", "amd", "vgpu", "10Gi", "8G", "10GB"]),
    st.sampled_from(["1g.10gb", "g.", "e9", "nan"]),
)


@given(st.one_of(st.text(max_size=300), st.lists(_FRAGMENTS, max_size=14).map("".join)))
def test_any_text_is_read_or_pointed_at(text: str) -> None:
    try:
        request = parse_request(text)
    except RequestSyntaxError as error:
        assert 0 <= error.position <= error.end <= len(text)
        assert error.text == text
        assert error.expected
        assert len(error.render().split("\n")) == 3
    else:
        assert parse_request(format_request(request)) == request


@given(st.sampled_from(["1(", "1(A", "9", "2x", " ", "(", "A100|", "A b", "0.", "1g.", "10Gi,"]), st.integers(1, 200))
def test_repetition_does_not_make_it_slow_or_deep(fragment: str, times: int) -> None:
    # A recursion or a pattern that backtracks would end in another exception, or in the suite's time limit.
    for text in (fragment * times, "1(" + fragment * times):
        try:
            parse_request(text)
        except RequestSyntaxError as error:
            assert error.end <= len(text)
