"""A coordinator that has lost one of its parts would go on half: it ends instead, with what that part failed with."""

from __future__ import annotations

import logging

import pytest

from aliquot.coordinator import leading
from tests.coordinator.pool import eventually, running


async def test_a_coordinator_of_which_a_part_fails_ends_with_that_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def defect(*_: object) -> None:
        raise RuntimeError("no more figures")

    monkeypatch.setattr(leading, "follow_fragmentation", defect)
    with pytest.raises(RuntimeError, match="no more figures"):
        async with running() as pool:
            await eventually(lambda: pool.leading.failure, "what has failed is known")
    assert "fragmentation failed, and this coordinator ends" in caplog.text
    assert all(record.levelno == logging.CRITICAL for record in caplog.records if "this coordinator ends" in record.msg)
