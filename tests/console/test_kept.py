"""What the console keeps of callers: bounded, shared out, for a while, and nothing once they are gone."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from aliquot.client import NotLoggedIn, NotPermitted
from aliquot.console import known as remembered
from aliquot.console.known import KNOWN_S, Known
from aliquot.console.origin import Origin
from aliquot.console.places import Places


@given(st.integers(0, 8), st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.booleans()), max_size=40))
def test_places_are_given_while_there_is_room_for_all_and_for_one(
    most: int, steps: list[tuple[str, int, bool]]
) -> None:
    places, taken = Places(most), Counter[str]()
    for who, part, leaves in steps:
        if leaves and taken[who]:
            places.leave(who)
            taken[who] -= 1
        elif not leaves:
            room = taken.total() < most and taken[who] < part
            assert places.take(who, part) is room
            taken[who] += room
        assert places.now == taken.total()
    for who in taken.elements():
        places.leave(who)
    assert (places.now, len(places._of)) == (0, 0), "nothing is kept of who has left"


class Pools:
    """A pool that knows tokens by their first letter, and counts who was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @contextlib.asynccontextmanager
    async def of(self, token: str) -> AsyncIterator[Any]:
        async def whoami() -> Any:
            self.asked.append(token)
            if token.startswith("?"):
                raise NotLoggedIn("nobody")
            if token.startswith("lease"):
                raise NotPermitted("not yours to ask")
            return SimpleNamespace(principal=token[:1])

        yield SimpleNamespace(access=SimpleNamespace(whoami=whoami))


async def test_a_token_is_asked_about_once_in_a_while_and_what_was_refused_each_time() -> None:
    now, pools = [1_000.0], Pools()
    known = Known(pools, lambda: now[0])  # type: ignore[arg-type]
    assert [await known.principal(token) for token in ("ann-1", "ann-1", "bob-1")] == ["a", "a", "b"]
    now[0] += KNOWN_S - 1
    assert await known.principal("ann-1") == "a"
    assert pools.asked == ["ann-1", "bob-1"]
    now[0] += 1
    assert await known.principal("ann-1") == "a"
    assert pools.asked[2:] == ["ann-1"]
    for _ in range(2):
        with pytest.raises(NotLoggedIn):
            await known.principal("?")
    assert pools.asked[3:] == ["?", "?"]
    assert [await known.principal("lease-1") for _ in range(2)] == ["lease-1"] * 2
    assert pools.asked[5:] == ["lease-1"]


async def test_beyond_the_bound_who_was_not_seen_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "KNOWN_MAX", 2)
    pools = Pools()
    known = Known(pools, lambda: 0.0)  # type: ignore[arg-type]
    for token in ("a", "b", "a", "c", "a", "b"):
        await known.principal(token)
    assert pools.asked == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("origin", "authority", "name", "secure"),
    [
        (Origin({"localhost"}), "localhost:7074", "aliquot-7074", False),
        (Origin({"localhost"}), "localhost", "aliquot-80", False),
        (Origin({"[::1]"}), "[::1]:9", "aliquot-9", False),
        (Origin({"localhost"}, tls=True), "localhost:7074", "__Host-aliquot", True),
        (Origin({"a.example"}, "https://a.example"), "a.example", "__Host-aliquot", True),
        (Origin({"a.example"}, "https://a.example"), "localhost:7074", "aliquot-7074", False),
        (Origin({"a.example"}, "http://a.example"), "A.example:80", "aliquot-80", False),
    ],
)
@pytest.mark.parametrize(("value", "max_age_s"), [("x", 9), ("", 9), ("", 0)])
def test_a_cookie_is_out_of_reach_of_pages_and_forgotten_without_a_value(
    origin: Origin, authority: str, name: str, secure: bool, value: str, max_age_s: int
) -> None:
    response = Response()
    origin.set_cookie(response, "aliquot", value, authority, max_age_s=max_age_s)
    first, *words = response.headers["Set-Cookie"].split("; ")
    assert first.replace('""', "") == f"{name}={value}"
    assert "HttpOnly" in words
    assert "SameSite=strict" in words
    assert f"Max-Age={max_age_s if value else 0}" in words
    assert ("Secure" in words) is secure
