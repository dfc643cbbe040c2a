"""SIGHUP: the log level changes at once; other changed settings are named and wait for the next start.

An agent starts again in a second or two, which ends nothing that runs under its leases. A file that makes no sense
changes nothing. Left alone, the signal would end the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from aliquot.agent.settings import Settings
from aliquot.common import logging as logs
from aliquot.common.errors import AliquotError

log = logging.getLogger(__name__)

LIVE = frozenset({"log_level", "log_json"})
"""Settings that change without a restart; docs/operations.md lists them."""


def read_again(current: Settings, read: Callable[[], Settings]) -> Settings:
    """The settings that hold from now on."""
    try:
        wanted = read()
        logs.configure(wanted.log_level, json=wanted.log_json)
    except AliquotError as error:
        log.error("settings stay as they are: %s", error.explain())  # noqa: TRY400 - what it says is enough
        return current
    waiting = [
        name
        for name in Settings.__struct_fields__
        if name not in LIVE and getattr(wanted, name) != getattr(current, name)
    ]
    if waiting:
        log.warning("settings were read again; these wait for the next start: %s", ", ".join(waiting))
    else:
        log.warning("settings were read again")
    return msgspec.structs.replace(current, log_level=wanted.log_level, log_json=wanted.log_json)
