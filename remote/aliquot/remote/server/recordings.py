"""Captured steps, kept to be run again by their number."""

from __future__ import annotations

from aliquot.remote.core.bounds import RECORDED_WORDS_MAX, RECORDINGS_MAX
from aliquot.remote.core.messages import Record
from aliquot.remote.core.words import StreamError, unpack


class Recordings:
    """The captured steps of a session."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[int, tuple[list[int], list[int]]] = {}

    def put(self, record: Record) -> None:
        """Keep a step, or forget one whose words are empty.

        Raises:
            StreamError: too many, too long, or no words.
        """
        if not record.words:
            self._kept.pop(record.number, None)
            return
        words = unpack(record.width, record.words)
        if len(words) > RECORDED_WORDS_MAX or not 0 <= record.number < RECORDINGS_MAX:
            raise StreamError(f"a step of {len(words)} words can't be kept as number {record.number}")
        self._kept[record.number] = (words, record.kept)

    def get(self, number: int) -> tuple[list[int], list[int]]:
        """The words of a step, and the allocations that it makes anew each time.

        Raises:
            StreamError: there is no such step.
        """
        try:
            return self._kept[number]
        except KeyError:
            raise StreamError(f"there is no captured step {number}") from None

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
