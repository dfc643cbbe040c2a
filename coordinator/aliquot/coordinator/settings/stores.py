"""Which journal and which leadership the settings ask for, and how the journal's snapshots are taken."""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.common.errors import ConfigError
from aliquot.coordinator.parts import load
from aliquot.coordinator.settings.config import Settings
from aliquot.coordinator.writing.journal.base import POSTGRES, Journal
from aliquot.coordinator.writing.journal.chained import StoredJournal
from aliquot.coordinator.writing.journal.compaction import Compaction
from aliquot.coordinator.writing.journal.memory import MemoryJournal
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from aliquot.coordinator.writing.leadership.single import SingleLeadership, lock_path_of

if TYPE_CHECKING:
    from aliquot.coordinator.reading.tracing.exporting import Tracing  # an extra
    from aliquot.coordinator.writing.journal.postgres import PostgresJournal
    from aliquot.coordinator.writing.leadership.postgres import PostgresLeadership


def make_journal(settings: Settings) -> Journal:
    """The journal that `--journal` names. Raises ConfigError."""
    kind, _, place = settings.journal.partition(":")
    if kind == "memory" and not place:
        return MemoryJournal()
    if kind == "sqlite" and place:
        path = Path(place).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path.parent}: {error.strerror}", hint="give --journal sqlite:PATH") from error
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is no file", hint=f"give --journal sqlite:{path / 'coordinator.db'}")
        return SqliteJournal(path, fsync_delay_ms=settings.fsync_delay_ms)
    if kind == "postgres" and not place.startswith("//"):
        journal: PostgresJournal = load("PostgreSQL")(place)
        return journal
    raise ConfigError(
        f"journal {settings.journal!r} is unknown",
        hint="sqlite:PATH, memory:, or postgres:CONNINFO such as 'postgres:host=db1,db2 dbname=aliquot user=aliquot'",
    )


def shared_leadership(settings: Settings, journal: Journal) -> PostgresLeadership | None:
    """One leader at a time, where several coordinators share the journal; None where it is one coordinator's own."""
    if not settings.journal.startswith(POSTGRES) or not isinstance(journal, load("PostgreSQL")):
        return None
    holder = f"{socket.gethostname()}:{os.getpid()}"
    seat: PostgresLeadership = load("leadership by PostgreSQL")(
        journal, holder=holder, expiry_ms=settings.leader_expiry
    )
    seat.skew_max_ms = settings.clock_skew_max
    return seat


def single_leadership(settings: Settings, journal: Journal) -> SingleLeadership:
    """One coordinator per journal."""
    kind, _, place = settings.journal.partition(":")
    lock = lock_path_of(Path(place).expanduser()) if kind == "sqlite" else None
    return SingleLeadership(journal, lock)


def make_compaction(
    settings: Settings,
    journal: Journal,
    *,
    durable_seq: Callable[[], int],
    prune: Callable[[int], None],
    tell: Callable[[str, str], None],
) -> Compaction | None:
    """The compaction of this journal; None for one that needs none."""
    if not isinstance(journal, StoredJournal):
        return None
    return Compaction(
        str(journal.path) if isinstance(journal, SqliteJournal) else settings.journal,
        journal.snapshot_store.seqs,
        every_facts=settings.snapshot_every_facts,
        durable_seq=durable_seq,
        prune=prune,
        tell=tell,
    )


def make_backup_watch(settings: Settings, journal: Journal, now_ms: Callable[[], int]) -> Callable[[], str] | None:
    """What says why backups are missing, empty where none is; None: nobody expects any. Raises ConfigError."""
    within_ms = settings.backup_within
    if not within_ms:
        return None
    if not isinstance(journal, SqliteJournal):
        raise ConfigError(
            "backup_within is for a journal in a file", hint="watch PostgreSQL's backups by what makes them"
        )
    began_s = now_ms() / 1000

    def missing() -> str:
        last_s = journal.backed_up_s()
        if now_ms() - (last_s or began_s) * 1000 <= within_ms:
            return ""
        when = dt.datetime.fromtimestamp(last_s, dt.UTC).isoformat(timespec="minutes")
        last = f"the last is of {when}" if last_s else "there has been none since this coordinator began"
        return f"no backup within {within_ms}: {last}"

    return missing


def make_tracing(settings: Settings, version: str) -> Tracing | None:
    """What sends them; None: nothing does. Raises ConfigError."""
    endpoint = settings.tracing.endpoint
    if not endpoint:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"tracing.endpoint is {endpoint!r}", hint="an URL: http://collector:4318/v1/traces is a collector's own"
        )
    tracing: Tracing = load("tracing")(endpoint, version)
    return tracing
