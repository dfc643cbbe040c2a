"""The one string that brings a person or a node into a pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.connection_string import CHARS_MAX, PREFIX, ConnectionString, decode
from aliquot.common.errors import ConfigError
from aliquot.common.tokens import invite_id_of, make_invite, make_token, token_id_of, without_tokens

WORD = st.text(min_size=1, max_size=40)


@given(st.lists(WORD, min_size=1, max_size=5), WORD, st.text(max_size=200), st.text(max_size=20))
def test_what_was_written_is_read(addresses: list[str], token: str, ca_pem: str, node: str) -> None:
    string = ConnectionString(tuple(addresses), token, ca_pem, node)
    assert decode(string.encode()) == string
    assert string.encode().startswith(PREFIX)
    assert not set(string.encode()) & set(" \n'\"$`\\=&|;<>*?~!")


def test_a_terminal_that_breaks_lines_does_no_harm() -> None:
    string = ConnectionString(("10.0.0.1:7070",), "alq_x", "PEM", "gpu-07")
    text = string.encode()
    assert decode(f"  {text[:20]}\n  {text[20:]}\r\n") == string


@pytest.mark.parametrize(
    "text",
    [
        "",
        "alq1.",
        "alq1.e30",  # {}
        "alq1.!!!!",
        "alq1." + "A" * CHARS_MAX,
        "alq2.e30",
        ConnectionString((), "t").encode(),
        ConnectionString(("a",), "").encode(),
        ConnectionString(("a",), "secret-of-mine").encode()[:-4],
    ],
)
def test_what_is_none_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(text)
    assert "secret-of-mine" not in caught.value.explain()
    assert text[6:] == "" or text[6:] not in caught.value.explain()


def test_neither_logs_nor_errors_show_the_token() -> None:
    invite_id, invite = make_invite(bytes(range(38)))
    string = ConnectionString(("10.0.0.1:7070",), invite, "PEM", "gpu-07")
    assert invite not in repr(string)
    assert invite not in without_tokens(f"can't join with {invite}")
    assert string.encode()[8:] not in without_tokens(f"aliquot-agent join {string.encode()}")
    assert invite_id_of(invite) == invite_id


def test_an_invite_is_no_token_and_a_token_no_invite() -> None:
    _, invite = make_invite(bytes(38))
    _, token = make_token(bytes(38))
    assert token_id_of(invite) is None
    assert invite_id_of(token) is None
