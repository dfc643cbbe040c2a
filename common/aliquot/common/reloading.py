"""SIGHUP: settings are read again, those that can change at run time do, and others are named and wait for the next
start.

A restart takes a second or two and loses nothing. So only settings change at run time that one may need to change when
a restart is unwelcome. What makes no sense changes nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from aliquot.common import logging as common_logging
from aliquot.common.duties import Duties
from aliquot.common.errors import AliquotError

log = logging.getLogger(__name__)


class _Settings(Protocol):
    @property
    def log_level(self) -> str: ...

    @property
    def log_json(self) -> bool: ...


T = TypeVar("T", bound=_Settings)


def read_again(current: T, read: Callable[[], T], live: Collection[str], duties: Duties) -> T:
    """The settings that hold from now on; `live`: those that may change, by their names in a file (`elastic.idle`).

    Those that can't be read are a duty that fails, because the next start would end at them.
    """
    try:
        wanted = read()
        common_logging.configure(wanted.log_level, json=wanted.log_json)
    except AliquotError as error:
        duties.tell("settings", f"they stay as they are: {error.explain()}")
        return current
    duties.tell("settings")
    before, after = dict(leaves(current)), dict(leaves(wanted))
    changed = [name for name, value in after.items() if before[name] != value]
    for text, names in (
        ("settings were read again; these hold now: %s", [name for name in changed if name in live]),
        ("settings were read again; these wait for the next start: %s", [name for name in changed if name not in live]),
    ):
        if names:
            log.warning(text, ", ".join(names))
    if not changed:
        log.warning("settings were read again; nothing has changed")
    taken: T = _with_live_of(wanted, current, live)
    return taken


def leaves(settings: object, above: str = "") -> Iterator[tuple[str, object]]:
    """Each setting by its name in a file, tables and all: `elastic.idle`."""
    for name in _names(settings):
        value = getattr(settings, name)
        if _names(value):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _with_live_of(wanted: Any, current: Any, live: Collection[str], above: str = "") -> Any:  # noqa: ANN401 - a table
    taken: dict[str, object] = {}
    for name in _names(current):
        old, new = getattr(current, name), getattr(wanted, name)
        if _names(old):
            taken[name] = _with_live_of(new, old, live, f"{above}{name}.")
        elif f"{above}{name}" in live:
            taken[name] = new
    replace = msgspec.structs.replace if isinstance(current, msgspec.Struct) else dataclasses.replace
    return replace(current, **taken)


def _names(table: object) -> tuple[str, ...]:
    """Of a table's settings; a setting itself has none."""
    if isinstance(table, msgspec.Struct):
        return table.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(table)) if dataclasses.is_dataclass(table) else ()
