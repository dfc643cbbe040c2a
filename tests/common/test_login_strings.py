"""Login strings: what goes in comes out, what was damaged on the way is refused, and no error repeats the secret."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.errors import ConfigError
from aliquot.common.login import CHARS_MAX, PREFIX, LoginString, is_login_string, read_login_string
from aliquot.common.tokens import CHARS_MAX as TOKEN_CHARS_MAX
from aliquot.common.tokens import ENTROPY_BYTES, check_token, make_token, without_tokens

TOKEN = make_token(bytes(ENTROPY_BYTES))[1]
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
_words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=100)


@given(
    addresses=st.lists(_words, min_size=1, max_size=16),
    token=_words,
    ca=st.sampled_from(["", PEM]),
    node=st.sampled_from(["", "gpu-07", "gpu-07.rack3"]),
)
def test_what_goes_in_comes_out(addresses: list[str], token: str, ca: str, node: str) -> None:
    said = LoginString(tuple(addresses), token, ca, node)
    text = said.encode()
    assert is_login_string(text)
    assert read_login_string(text) == said
    assert text.isascii()
    assert len(text.split()) == 1


def test_breaks_that_copying_adds_are_left_out() -> None:
    text = LoginString(("gpu-a:7070",), TOKEN, PEM).encode()
    broken = "  " + "\n  ".join(text[at : at + 40] for at in range(0, len(text), 40)) + "\n"
    assert read_login_string(broken).token == TOKEN


def _of(document: object) -> str:
    return PREFIX + base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        TOKEN,
        PREFIX,
        PREFIX + "%%%",
        LoginString(("gpu-a:7070",), TOKEN).encode()[:-9],
        PREFIX + "A" * CHARS_MAX,
        _of([]),
        _of({"c": [], "t": TOKEN}),
        _of({"c": ["a b"], "t": TOKEN}),
        _of({"c": ["a:1"] * 17, "t": TOKEN}),
        _of({"c": ["a:1"]}),
        _of({"c": ["a:1"], "t": ""}),
        _of({"c": ["a:1"], "t": TOKEN + "\n"}),
        _of({"c": ["a:1"], "t": TOKEN * 9}),
        _of({"c": ["a:1"], "t": TOKEN, "ca": "no certificate"}),
        _of({"c": ["a:1"], "t": TOKEN, "n": "../gpu"}),
    ],
)
def test_what_is_damaged_is_refused_and_never_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_login_string(text)
    assert refused.value.hint
    assert TOKEN[:20] not in refused.value.explain()
    assert text[:40] not in refused.value.explain() or len(text) < 10


def test_a_secret_is_not_in_what_a_value_looks_like() -> None:
    assert TOKEN not in repr(LoginString(("gpu-a:7070",), TOKEN))


def test_tokens_are_cut_out_of_what_is_said() -> None:
    login = LoginString(("gpu-a:7070",), TOKEN).encode()
    lease = f"alq_lease_l-0123456789abc_{'0' * 64}"
    said = without_tokens(f"{TOKEN}, {login} and {lease}: {TOKEN}.")
    assert said == "alq_…, alq_… and alq_…: alq_…."


def test_a_token_is_one_visible_word() -> None:
    assert check_token(TOKEN, "x") == TOKEN
    for text in ("", "a b", "ü", "x" * (TOKEN_CHARS_MAX + 1)):
        with pytest.raises(ConfigError, match="no token"):
            check_token(text, "the file")
