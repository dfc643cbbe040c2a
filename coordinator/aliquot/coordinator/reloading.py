"""SIGHUP: read the settings again, apply what can change while it runs, and name what has to wait for a restart.

A coordinator restarts within a second or two and loses nothing by it, so little is worth changing underneath it: how
much it logs, which one wants to change just when it must not be restarted. A file that makes no sense changes nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from aliquot.common import logging as common_logging
from aliquot.common.errors import AliquotError
from aliquot.coordinator.config import Settings

log = logging.getLogger(__name__)

LIVE = frozenset({"log_level", "log_json"})
"""Settings that change without a restart."""


def read_again(current: Settings, read: Callable[[], Settings]) -> Settings:
    """The settings that hold from now on."""
    try:
        wanted = read()
        common_logging.configure(wanted.log_level, json=wanted.log_json)
    except AliquotError as error:
        log.error("settings stay as they are: %s", error.explain())  # noqa: TRY400 - what it says is enough
        return current
    waiting = [
        field.name
        for field in dataclasses.fields(Settings)
        if field.name not in LIVE and getattr(wanted, field.name) != getattr(current, field.name)
    ]
    if waiting:
        log.warning("settings were read again; these wait for the next start: %s", ", ".join(waiting))
    else:
        log.warning("settings were read again")
    return dataclasses.replace(current, log_level=wanted.log_level, log_json=wanted.log_json)
