"""Backups that fail, or that nobody makes, are told by the coordinator whose journal it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from aliquot.cli.main import build_parser, commands
from aliquot.common.duration import DurationMs
from aliquot.common.errors import ConfigError
from aliquot.coordinator.coordinator import Coordinator
from aliquot.v1 import pool_pb2
from tests.coordinator.pool import Pool, running, settings_for, sqlite
from tests.journal.facts import written
from tests.manual_clock import ManualClock

HOUR_MS = 3_600_000


def back_up(journal: Path, target: Path) -> int:
    args = build_parser(commands(["journal"])).parse_args(["journal", "backup", str(journal), str(target)])
    code: int = args.run(args)
    return code


async def conditions(pool: Pool) -> dict[str, str]:
    """What `aliquot health` shows of the coordinator itself."""
    health = await pool.nodes.GetHealth(pool_pb2.GetHealthRequest())
    return {each.subject: each.text for each in health.conditions}


def measured(coordinator: Coordinator) -> str:
    registry = CollectorRegistry()
    registry.register(coordinator)
    return generate_latest(registry).decode()


async def test_a_backup_that_is_missing_is_told_until_there_is_one(tmp_path: Path) -> None:
    path, stamp = tmp_path / "j.db", tmp_path / "j.db.backed-up"
    async with running(settings_for(sqlite(path), backup_within=DurationMs(26 * HOUR_MS))) as pool:
        assert await conditions(pool) == {}
        assert back_up(path, tmp_path / "one.db") == 0
        assert await conditions(pool) == {}
        assert 'aliquot_duty{duty="backup"} 1.0' in measured(pool.coordinator)
        os.utime(stamp, (1_700_000_000, 1_700_000_000))  # and none since
        assert await conditions(pool) == {"backup": "no backup within 1d2h: the last is of 2023-11-14T22:13+00:00"}
        assert 'aliquot_duty{duty="backup"} 0.0' in measured(pool.coordinator)
        (tmp_path / "two.db").touch()
        with pytest.raises(ConfigError, match="exists"):
            back_up(path, tmp_path / "two.db")
        assert "backup" in await conditions(pool), "one that failed is none"
        assert back_up(path, tmp_path / "three.db") == 0
        assert await conditions(pool) == {}
    assert stamp.stat().st_mode & 0o777 == 0o600


async def test_where_there_was_never_one_it_counts_from_the_start(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(settings_for(sqlite(tmp_path / "j.db"), backup_within=DurationMs(HOUR_MS)), clock=clock) as pool:
        clock.advance(HOUR_MS)
        assert await conditions(pool) == {}
        clock.advance(1)
        assert await conditions(pool) == {
            "backup": "no backup within 1h: there has been none since this coordinator began"
        }


async def test_who_expects_none_is_told_nothing(tmp_path: Path) -> None:
    async with running(settings_for(sqlite(tmp_path / "j.db"))) as pool:
        assert 'duty="backup"' not in measured(pool.coordinator)


async def test_backups_of_no_file_are_not_watched() -> None:
    with pytest.raises(ConfigError, match="backup_within is for a journal in a file"):
        Coordinator(settings_for(backup_within=DurationMs(HOUR_MS)))


def test_a_backup_is_whole_even_where_nobody_can_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:

    written(tmp_path / "j.db", 1).journal.close()
    (tmp_path / "j.db.backed-up").mkdir()
    assert back_up(tmp_path / "j.db", tmp_path / "copy.db") == 0
    assert "its coordinator does not hear of it" in capsys.readouterr().err
