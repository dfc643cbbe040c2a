"""What is remembered is bounded, and the oldest goes first."""

from __future__ import annotations

from aliquot.common.latest import Latest


def test_the_latest_are_kept_and_one_that_is_set_again_is_new() -> None:
    kept: Latest[str, int] = Latest(2)
    kept["a"] = 1
    kept["b"] = 2
    kept["a"] = 3
    kept["c"] = 4
    assert list(kept.items()) == [("a", 3), ("c", 4)]


def test_what_is_read_is_not_moved() -> None:
    kept: Latest[str, int] = Latest(2)
    kept.update({"a": 1, "b": 2})
    assert kept["a"] == 1
    kept["c"] = 3
    assert list(kept) == ["b", "c"]
