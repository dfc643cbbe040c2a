"""A search that found nothing rests: equal questions wait, and each further failure rests longer."""

from __future__ import annotations

from aliquot.coordinator.core.values.rests import Rests


def test_an_equal_question_rests_and_another_does_not() -> None:
    rests: Rests[str] = Rests()
    rests.begin("a", version=1, now_ms=0, until_ms=1_000)
    rest = rests.of("a", 999)
    assert rest is not None
    assert (rest.until_ms, rest.version) == (1_000, 1)
    assert rests.of("a", 1_000) is None
    assert rests.of("b", 0) is None


def test_a_change_meanwhile_is_said_once() -> None:
    rests: Rests[str] = Rests()
    rests.begin("a", version=1, now_ms=0, until_ms=1_000)
    assert not rests.has_changed("a", 1)
    assert rests.has_changed("a", 2)
    assert not rests.has_changed("a", 3)
    assert rests.of("a", 999) is not None, "it rests on all the same"


def test_failures_in_a_row_rest_twice_as_long_up_to_a_bound() -> None:
    rests: Rests[str] = Rests()
    now_ms, lengths = 0, []
    for _ in range(4):
        rests.begin_longer("a", 1, now_ms, first_ms=1_000, longest_ms=4_000)
        rest = rests.of("a", now_ms)
        assert rest is not None
        lengths.append(rest.length_ms)
        now_ms = rest.until_ms
    assert lengths == [1_000, 2_000, 4_000, 4_000]
    rests.begin_longer("a", 1, now_ms + 4_000, first_ms=1_000, longest_ms=4_000)
    assert rests.of("a", now_ms + 5_000) is None, "that was long ago: it begins anew"


def test_what_was_found_ends_a_rest_and_too_many_are_forgotten() -> None:
    rests: Rests[int] = Rests(kept_max=2)
    rests.begin(1, 0, 0, 1_000)
    rests.end(1)
    assert rests.of(1, 0) is None
    for key in (1, 2, 3):
        rests.begin(key, 0, 0, 1_000)
    assert [key for key in (1, 2, 3) if rests.of(key, 0) is not None] == [3]
