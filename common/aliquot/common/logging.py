"""Structured logs on the standard library: lines for people, or JSON lines for collectors.

Facts go into `extra`, not into the sentence: `log.info("lease granted", extra={"lease_id": id})`. What holds for all
that a task does (`about`: the call, its principal) or a program says (`always`: its node) is added to each record.

Every record is one line of bounded length, whatever its message holds, so a name chosen by a user can't forge a line or
fill a disk. Only tracebacks add lines, and not in JSON.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, TextIO

import msgspec

from aliquot.common.errors import ConfigError
from aliquot.common.text import one_line

TEXT_CHARS_MAX: Final = 4096
"""Of a message, and of each fact: some of what they say comes from tenants and peers."""
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_ABOUT: ContextVar[Mapping[str, object]] = ContextVar("about", default={})  # noqa: B039 - never changed
_ALWAYS: Final[dict[str, object]] = {}
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure(level: str = "info", *, json: bool = False, stream: TextIO | None = None) -> None:
    """Makes the root logger write to `stream` (stderr by default), replacing what was configured before.

    Raises `ConfigError` for an unknown level.
    """
    if level.lower() not in LEVELS:
        raise ConfigError(f"log level {level!r} is unknown", hint=f"one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if json else HumanFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)


def about(facts: Mapping[str, object]) -> None:
    """From here on, in this task and what it begins, records have these facts; others that were set are gone."""
    _ABOUT.set(facts)


def always(**facts: object) -> None:
    """From now on all records of this program have these facts too."""
    _ALWAYS.update(facts)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, level, logger, message, the extra facts, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        # `extra` must not overwrite the record's own fields.
        line |= {f"extra_{key}" if key in line else key: _cut(value) for key, value in _extra(record).items()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class HumanFormatter(logging.Formatter):
    """`2026-11-21T09:48:01.123Z INFO    aliquot.agent: lease attached lease_id=l-… pid=4711`."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        facts = "".join(f" {key}={one_line(str(value), TEXT_CHARS_MAX)}" for key, value in _extra(record).items())
        said = one_line(record.getMessage(), TEXT_CHARS_MAX)
        line = f"{_timestamp(record)} {record.levelname:<7} {record.name}: {said}{facts}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    own = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    return {**_ALWAYS, **_ABOUT.get(), **own}


def _cut(value: object) -> object:
    """JSON escapes what is not printable itself."""
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return value[: TEXT_CHARS_MAX - 1] + "…"
    return value


def _timestamp(record: logging.LogRecord) -> str:
    moment = dt.datetime.fromtimestamp(record.created, tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
