"""Text from somebody who is not trusted, made fit for a log, a message and a terminal."""

from __future__ import annotations


def one_line(text: str, chars_max: int) -> str:
    """At most that many printable characters on one line; what was cut off shows as `…`."""
    shown = "".join(char if char.isprintable() else " " for char in text[: chars_max + 1])
    return shown if len(shown) <= chars_max else shown[: chars_max - 1] + "…"
