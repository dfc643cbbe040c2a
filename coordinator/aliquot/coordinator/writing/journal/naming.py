"""Journals by the names that people give them, as `--journal` has them."""

from __future__ import annotations

from pathlib import Path

from aliquot.common.errors import ConfigError
from aliquot.coordinator.writing.journal.base import POSTGRES, SQLITE
from aliquot.coordinator.writing.journal.chained import StoredJournal
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal


def named(name: str, pool_secret: bytes = b"") -> StoredJournal:
    """The journal of this name; a bare path is an SQLite file. Raises ConfigError."""
    if name.startswith(POSTGRES):
        from aliquot.coordinator.writing.journal.postgres import PostgresJournal  # noqa: PLC0415 - an extra

        return PostgresJournal(name.removeprefix(POSTGRES), pool_secret=pool_secret)
    path = Path(name.removeprefix(SQLITE)).expanduser()
    if not path.name:
        raise ConfigError(f"{name!r} names no file", hint="sqlite:PATH, such as sqlite:coordinator.db")
    return SqliteJournal(path, pool_secret=pool_secret)
