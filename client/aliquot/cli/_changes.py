"""What declaring something again changes: a declaration replaces the one before it, with all that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from aliquot.common.errors import ConfigError

_KEYS = ("name", "model", "when", "label")
"""By what entries of a list are told apart, where they have it."""


class Changes(NamedTuple):
    """Of one declaration, a line each."""

    lines: tuple[str, ...]
    gone: tuple[str, ...]
    """Those of them about what was said before and is not any more."""


def changes(title: str, old: object, new: object, usual: object) -> Changes:
    """From one value to another of the same type. What is as in `usual` counts as not said."""
    unsaid = dict(_leaves(usual))
    before, after = ({path: value for path, value in _leaves(each) if unsaid.get(path) != value} for each in (old, new))
    lines, gone = [], []
    for path in dict.fromkeys([*before, *after]):
        if isinstance(before.get(path), bool) and path not in after:
            lines.append(f"{title}: {path} no")
        elif path not in after:
            gone.append(f"{title}: {path} disappears (was {before[path]})")
            lines.append(gone[-1])
        elif path not in before:
            lines.append(f"{title}: {path} {after[path]}")
        elif before[path] != after[path]:
            lines.append(f"{title}: {path} {before[path]} -> {after[path]}")
    return Changes(tuple(lines), tuple(gone))


def refuse_loss(gone: Sequence[str]) -> None:
    """Raise ConfigError where something would disappear, which may be no more than left out of a file by mistake."""
    if gone:
        more = f", and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise ConfigError(
            f"nothing was changed: {gone[0]}{more}",
            hint="a declaration replaces the one before it: add what is to stay, or say --yes (--dry-run shows all)",
        )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, object]]:  # noqa: ANN401 - whatever is declared
    """Every plain value with where it stands; what is empty is not said. Zero is: it may forbid all of something."""
    if is_dataclass(value):
        inner = {each.name: getattr(value, each.name) for each in fields(value) if not (path and each.name in _KEYS)}
    elif isinstance(value, Mapping):
        inner = dict(value)
    elif isinstance(value, (list, tuple)) and any(map(is_dataclass, value)):
        inner = {_key(each, number): each for number, each in enumerate(value)}
    else:
        if value or type(value) is int:
            yield path, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        return
    for name, each in inner.items():
        yield from _leaves(each, f"{path}.{name}" if path else str(name))


def _key(entry: object, number: int) -> str:
    return next((str(getattr(entry, key)) for key in _KEYS if getattr(entry, key, "")), str(number + 1))
