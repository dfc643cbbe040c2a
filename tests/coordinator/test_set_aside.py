"""A request on which deciding fails again and again: the coordinator goes on, and shows it where people look."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from aliquot.coordinator.core.deciding.admission import admit as admission
from aliquot.coordinator.core.deciding.answers import explain
from aliquot.coordinator.core.rules import granting
from aliquot.coordinator.core.values import troubles
from aliquot.v1 import admin_pb2, admin_pb2_grpc, leases_pb2, types_pb2
from tests.coordinator.pool import eventually, running
from tests.coordinator.test_metrics import scrape

WAIT_QUEUED = leases_pb2.WAIT_UNTIL_QUEUED
QUEUED, GRANTED = types_pb2.LEASE_STATE_QUEUED, types_pb2.LEASE_STATE_GRANTED


async def test_it_is_set_aside_seen_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(troubles, "REST_FIRST_MS", 1)
    right, poisoned = granting.offer, {"bad"}

    def offer(state: Any, request: Any, *rest: Any, **more: Any) -> Any:
        if request.tenant in poisoned:
            raise ZeroDivisionError("a defect")
        return right(state, request, *rest, **more)

    monkeypatch.setattr(admission, "offer", offer)
    async with running() as pool:
        admin = admin_pb2_grpc.AdminServiceStub(pool.channel)
        await pool.declare(1)
        holder = await pool.allocate("1", tenant="first")
        bad = await pool.allocate("1", tenant="bad", wait_until=WAIT_QUEUED)
        good = await pool.allocate("1", tenant="good", wait_until=WAIT_QUEUED)
        await pool.release(holder.lease_id)
        await eventually(lambda: _is(pool, good.lease_id, GRANTED), "who stands behind it is granted")

        async def shown() -> types_pb2.Lease | None:
            seen = await pool.get(bad.lease_id)
            return seen if seen.set_aside else None

        seen = await eventually(shown, "it is set aside")
        assert seen.state == QUEUED
        assert "ZeroDivisionError: a defect" in seen.set_aside[0]
        assert not (await pool.get(good.lease_id)).set_aside
        assert scrape(pool)["aliquot_set_aside", ()] == 1
        said = [record for record in caplog.records if record.message.startswith("SET ASIDE")]
        assert [record.levelno for record in said] == [logging.ERROR]
        listed = await admin.RetrySetAside(admin_pb2.RetrySetAsideRequest())
        assert [(found.subject, found.failures) for found in listed.found] == [(bad.lease_id, troubles.TRIES_MAX)]

        poisoned.clear()
        await admin.RetrySetAside(admin_pb2.RetrySetAsideRequest(subject=bad.lease_id, carry_out=True))
        await pool.release(good.lease_id)
        await eventually(lambda: _is(pool, bad.lease_id, GRANTED), "it is granted")
        assert scrape(pool)["aliquot_set_aside", ()] == 0


async def test_a_lease_that_rests_after_a_failure_is_not_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def offer(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(troubles, "REST_FIRST_MS", 3_600_000)
    monkeypatch.setattr(admission, "offer", offer)
    async with running() as pool:
        await pool.declare(1)
        holder = await pool.allocate("1", tenant="first")
        waiting = await pool.allocate("1", wait_until=WAIT_QUEUED)
        await pool.release(holder.lease_id)
        await eventually(lambda: pool.leading.writer.troubles(waiting.lease_id), "it rests")
        caplog.clear()
        monkeypatch.setattr(explain, "offer", offer)
        seen = await pool.get(waiting.lease_id)
        assert seen.state == QUEUED
        assert not seen.set_aside
        assert not caplog.records


async def _is(pool: Any, lease_id: str, state: int) -> bool:
    return bool((await pool.get(lease_id)).state == state)
