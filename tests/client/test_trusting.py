"""How a program takes up the next certificate authority of its pool: asked about once an hour, believed where it
follows from one that is trusted, and kept where the login was.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aliquot.client import NotLoggedIn, _trusting
from aliquot.client._token import Token
from aliquot.client._trusting import EVERY_S, Trusting
from aliquot.client.access import Authority
from aliquot.common.errors import ConfigError, SecurityError
from aliquot.common.latest import Latest
from aliquot.common.tls import ClientTls, fingerprints

HERE = ("a.example:7070",)
NUMBERS = itertools.count()


def pem(*names: str) -> str:
    """Certificates, as far as anybody looks into them here."""
    texts = (base64.b64encode(name.encode()).decode() for name in names)
    return "".join(f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n" for text in texts)


def said(*names: str, shown: bool = True, coordinators: Sequence[str] = ()) -> Authority:
    return Authority(pem(*names), (), shown, tuple(coordinators))


class File:
    """Credentials: answers as it is told to, and notes what is put in."""

    def __init__(self) -> None:
        self.is_time = True
        self.kept = True
        self.broken = False
        self.trusted: list[tuple[str, str]] = []
        self.met: list[tuple[str, ...]] = []

    def _check(self) -> None:
        if self.broken:
            raise ConfigError("it can't be read")

    def asked(self, addresses: tuple[str, ...], _now_ms: int, every_ms: int) -> bool:
        self._check()
        assert (addresses, every_ms) == (HERE, 3_600_000)
        return self.is_time

    def meet(self, addresses: tuple[str, ...], coordinators: Sequence[str]) -> None:
        self._check()
        assert addresses == HERE
        self.met.append(tuple(coordinators))

    def trust(self, addresses: tuple[str, ...], before: str, after: str) -> bool:
        self._check()
        assert addresses == HERE
        self.trusted.append((before, after))
        return self.kept


class Asking:
    """A pool's, with a clock that stands still but for the test."""

    def __init__(self, tls: ClientTls | None, file: File | None) -> None:
        self.now_s = 50.0
        kept: Any = file
        self.trusting = Trusting(tls, HERE, kept, clock=lambda: self.now_s, wall_ms=lambda: 0)
        self.key = next(NUMBERS)


def test_it_is_asked_once_an_hour_for_each_token() -> None:
    asking = Asking(ClientTls(ca_pem=pem("one")), File())
    assert [asking.trusting.due(asking.key) for _ in range(3)] == [True, False, False]
    assert asking.trusting.due(next(NUMBERS))
    asking.now_s += EVERY_S - 1
    assert not asking.trusting.due(asking.key)
    asking.now_s += 1
    assert [asking.trusting.due(asking.key) for _ in range(2)] == [True, False]


def test_nothing_is_asked_where_nothing_could_be_kept_or_nobody_is_known(tmp_path: Path) -> None:
    file = File()
    assert not Asking(None, file).trusting.due("key")
    assert not Asking(ClientTls(ca_pem=pem("one")), file).trusting.due(None)
    assert not Asking(ClientTls(), None).trusting.due(next(NUMBERS)), "the system's authorities"
    assert Asking(ClientTls(ca_file=tmp_path / "ca.pem"), None).trusting.due(next(NUMBERS))
    file.is_time = False
    assert not Asking(ClientTls(ca_pem=pem("one")), file).trusting.due(next(NUMBERS)), "another program has asked"
    file.broken = True
    assert not Asking(ClientTls(ca_pem=pem("one")), file).trusting.due(next(NUMBERS))


def test_so_many_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_trusting, "_asked_at", Latest(2))
    asking = Asking(ClientTls(ca_pem=pem("one")), File())
    assert [asking.trusting.due(key) for key in ("a", "b", "c", "c", "b", "a")] == [True] * 3 + [False] * 2 + [True]


@pytest.mark.parametrize(
    ("offered", "news"),
    [
        (said("one", "two"), True),
        (said("two", "one"), True),
        (said("one"), False),
        (said("two"), False),
        (said(), False),
        (said("one", "two", shown=False), False),
    ],
)
def test_what_follows_from_one_that_is_trusted_is_kept(offered: Authority, news: bool) -> None:
    file = File()
    asking = Asking(ClientTls(ca_pem=pem("one")), file)
    assert asking.trusting.take(offered) is news
    assert file.trusted == ([(pem("one"), offered.authorities_pem)] if news else [])
    assert asking.trusting.trusts == fingerprints(offered.authorities_pem if news else pem("one"))
    assert not asking.trusting.take(offered), "it is known by now"
    assert file.met == []


def test_an_authority_that_was_retired_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    file = File()
    asking = Asking(ClientTls(ca_pem=pem("one", "two")), file)
    assert asking.trusting.take(said("two", coordinators=["b.example:7070"]))
    assert asking.trusting.trusts == fingerprints(pem("two"))
    assert file.met == [("b.example:7070",)]
    file.kept = False
    assert not asking.trusting.take(said("two", "three"))
    assert asking.trusting.trusts == fingerprints(pem("two")), "another program was first"
    file.broken = True
    assert not asking.trusting.take(said("two", "three", coordinators=["b.example:7070"]))
    assert "whom to trust can't be kept" in caplog.text


def test_a_file_of_its_owners_is_told_of_and_not_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = tmp_path / "ca.pem"
    asking = Asking(ClientTls(ca_file=own), None)
    assert asking.trusting.trusts == (), "there is none"
    own.write_text(pem("one", "two"))
    assert asking.trusting.trusts == fingerprints(pem("one", "two"))
    assert not asking.trusting.take(said("two"))
    assert not caplog.text, "it has all that is offered"
    assert not asking.trusting.take(said("two", "three"))
    assert f"put the next one into {own}" in caplog.text
    assert own.read_text() == pem("one", "two")


def test_a_token_is_read_anew_only_for_who_was_refused_with_the_one_that_is_here() -> None:
    texts = ["first"]

    def load() -> str:
        if texts[0] == "gone":
            raise ConfigError("no such file")
        return texts[0]

    token = Token(load, "a file")
    assert (token.text, token.generation, token.metadata("127.0.0.1:1")) == ("first", 0, token.key)
    assert not token.renewed(0), "it is the same"
    for nothing in ("", "gone"):
        texts[0] = nothing
        assert not token.renewed(0)
    texts[0] = "second"
    assert token.renewed(0)
    assert (token.text, token.generation) == ("second", 1)
    texts[0] = "third"
    assert token.renewed(0), "another was refused with the first, and the second is here"
    assert token.text == "second"
    assert token.renewed(1)
    assert token.text == "third"


@pytest.mark.parametrize(
    ("text", "tls", "address", "sent"),
    [
        ("t", True, "a.example:1", True),
        ("t", False, "127.0.0.1:1", True),
        ("t", False, "unix:/run/x", True),
        ("t", False, "a.example:1", False),
        ("", False, "a.example:1", True),
    ],
)
def test_a_token_is_sent_where_nobody_reads_it_on_its_way(text: str, tls: bool, address: str, sent: bool) -> None:
    token = Token(lambda: text, "here", tls=tls)
    if sent:
        assert token.metadata(address) == token.key
        assert (token.key is None) == (not text)
        return
    with pytest.raises(SecurityError, match=f"not sent to {address} without TLS") as refused:
        token.metadata(address)
    assert "aliquot login" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "reason", "hint", "advice"),
    [
        ("", "TOKEN_MISSING", "", "log in with the string"),
        ("", "TOKEN_MISSING", "ask", "log in with the string"),
        ("t", "TOKEN_EXPIRED", "ask", "the token is from a file; ask"),
        ("t", "TOKEN_EXPIRED", "", "the token is from a file; log in with the string"),
        ("t", "LOGIN_REFUSED", "ask", "ask"),
    ],
)
def test_who_is_refused_is_told_which_token_that_was(text: str, reason: str, hint: str, advice: str) -> None:
    error = NotLoggedIn("no", hint=hint, reason=reason)
    assert Token(lambda: text, "a file").advise(error) is error
    assert error.hint.startswith(advice)
