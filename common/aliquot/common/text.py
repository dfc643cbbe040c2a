"""Text from somebody who is not trusted, made fit for a log, a message and a terminal; and what they may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def one_line(text: str, chars_max: int) -> str:
    """At most that many printable characters on one line: others are escaped, and what was cut off shows as `…`."""
    shown = text[: chars_max + 1]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in shown)
    return shown if len(shown) <= chars_max else shown[: chars_max - 1] + "…"


def nearest(word: str, among: Iterable[str], limit: int = 1, cutoff: float = 0.6) -> list[str]:
    """Of these words, those most like one, best first."""
    from difflib import get_close_matches  # noqa: PLC0415 - only who has made a mistake needs it

    return get_close_matches(word, list(among), limit, cutoff)
