"""Text from somebody who is not trusted, made fit for a log, a message and a terminal."""

from __future__ import annotations


def one_line(text: str, chars_max: int) -> str:
    """At most that many printable characters on one line: others are escaped, and what was cut off shows as `…`."""
    shown = text[: chars_max + 1]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in shown)
    return shown if len(shown) <= chars_max else shown[: chars_max - 1] + "…"
