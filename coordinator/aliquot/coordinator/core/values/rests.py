"""Searches that found nothing, and are not made again for an equal question before a rest is over."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

SEARCH_REST_MS = 1_000
"""How long a search for room that found none rests."""
KEPT_MAX = 4_096

_K = TypeVar("_K")
_CHANGED = -1
"""Instead of a version: something has changed since the search, and it is made again when its rest is over."""


class Rest(NamedTuple):
    """One search that found nothing."""

    until_ms: int
    version: int
    """Of what it looked at."""
    length_ms: int


class Rests(Generic[_K]):
    """By what makes two questions equal. Bounded: at `kept_max` all are forgotten, which only costs searches."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._rests: dict[_K, Rest] = {}

    def of(self, key: _K, now_ms: int) -> Rest | None:
        """The rest of an equal question; None: it is over, or there was none."""
        rest = self._rests.get(key)
        return rest if rest is not None and now_ms < rest.until_ms else None

    def has_changed(self, key: _K, version: int) -> bool:
        """Whether this is the first look since something changed: the caller then comes back when the rest is over.

        It does not search at once: in a crowded pool something is freed all the time, and every time hundreds would
        search anew in vain.
        """
        rest = self._rests[key]
        if rest.version in (version, _CHANGED):
            return False
        self._rests[key] = rest._replace(version=_CHANGED)
        return True

    def begin(self, key: _K, version: int, now_ms: int, until_ms: int) -> None:
        """A search found nothing: rest until then."""
        if len(self._rests) >= self._kept_max:
            self._rests.clear()
        self._rests[key] = Rest(until_ms, version, until_ms - now_ms)

    def begin_longer(self, key: _K, version: int, now_ms: int, first_ms: int, longest_ms: int) -> None:
        """A search found nothing: rest for `first_ms`, or twice as long as before where it came to nothing lately."""
        last = self._rests.get(key)
        again = last is not None and now_ms < last.until_ms + last.length_ms
        length_ms = min(2 * last.length_ms, longest_ms) if last is not None and again else first_ms
        self.begin(key, version, now_ms, now_ms + length_ms)

    def end(self, key: _K) -> None:
        """A search found something."""
        self._rests.pop(key, None)
