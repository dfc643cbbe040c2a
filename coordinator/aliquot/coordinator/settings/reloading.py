"""SIGHUP: read the settings again, apply those that can change at run time, and name those that wait for a restart.

A restart takes a second or two and loses nothing. So only settings change at run time that one may need to change when
a restart is unwelcome, and that earlier decisions do not depend on: log level, timeouts, bounds of queues. A file with
an error changes nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from aliquot.common import logging as common_logging
from aliquot.common.errors import AliquotError
from aliquot.coordinator.settings.config import Settings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger(__name__)

_Table = TypeVar("_Table", bound="DataclassInstance")
LIVE = frozenset(
    {
        "log_level",
        "log_json",
        "access.burst",
        "access.requests_per_s",
        "access.streams_max",
        "agents.idle_window",
        "agents.use_looked_at_every",
        "agents.use_told_every",
        "elastic.idle",
        "elastic.rest",
        "limits.commands_queued_max",
        "limits.commands_wait_max",
        "limits.requests_queued_max",
        "mig.patience",
        "mig.rest",
    }
)
"""Settings that change without a restart; docs/operations.md lists them."""


def read_again(current: Settings, read: Callable[[], Settings]) -> Settings:
    """The settings that hold from now on."""
    try:
        wanted = read()
        common_logging.configure(wanted.log_level, json=wanted.log_json)
    except AliquotError as error:
        log.error("settings stay as they are: %s", error.explain())  # noqa: TRY400 - what it says is enough
        return current
    before, after = dict(leaves(current)), dict(leaves(wanted))
    changed = [name for name, value in after.items() if before[name] != value]
    for text, names in (
        ("settings were read again; these hold now: %s", [name for name in changed if name in LIVE]),
        ("settings were read again; these wait for the next start: %s", [name for name in changed if name not in LIVE]),
    ):
        if names:
            log.warning(text, ", ".join(names))
    if not changed:
        log.warning("settings were read again; nothing has changed")
    return _with_live_of(wanted, current)


def leaves(settings: object, above: str = "") -> Iterator[tuple[str, object]]:
    """Each setting by its name in a file, tables and all: `elastic.idle`."""
    assert dataclasses.is_dataclass(settings)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}", value


def _with_live_of(wanted: _Table, current: _Table, above: str = "") -> _Table:
    taken: dict[str, object] = {}
    for field in dataclasses.fields(current):
        name, old, new = f"{above}{field.name}", getattr(current, field.name), getattr(wanted, field.name)
        if dataclasses.is_dataclass(old):
            taken[field.name] = _with_live_of(new, old, f"{name}.")
        elif name in LIVE:
            taken[field.name] = new
    return dataclasses.replace(current, **taken)
