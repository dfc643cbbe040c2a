"""Tokens as text: recognised, cut out of what is said, and refused without being repeated."""

from __future__ import annotations

import pytest

from aliquot.common.connection_string import ConnectionString
from aliquot.common.errors import ConfigError
from aliquot.common.tokens import CHARS_MAX, ENTROPY_BYTES, check_token, make_token, without_tokens

TOKEN = make_token(bytes(ENTROPY_BYTES))[1]


def test_tokens_are_cut_out_of_what_is_said() -> None:
    login = ConnectionString(("gpu-a:7070",), TOKEN).encode()
    lease = f"alq_lease_l-0123456789abc_{'0' * 64}"
    said = without_tokens(f"{TOKEN}, {login} and {lease}: {TOKEN}.")
    assert said == "alq_…, alq_… and alq_…: alq_…."


def test_a_token_is_one_visible_word() -> None:
    assert check_token(TOKEN, "x") == TOKEN
    for text in ("", "a b", "ü", TOKEN * 9, "x" * (CHARS_MAX + 1)):
        with pytest.raises(ConfigError, match="no token") as refused:
            check_token(text, "the file")
        assert TOKEN not in refused.value.explain()
