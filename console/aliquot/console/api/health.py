"""The health of cards: what is wrong, how each incident went, and what people do about a card."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from aliquot.client.health import Health, Incident
from aliquot.console.api.answers import answer, shows
from aliquot.console.api.asking import Quarantine, Reason, Return
from aliquot.console.api.callers import Pool

router = APIRouter(tags=["health"])


@router.get("/health", responses=shows(Health))
async def health(pool: Pool, incident: Annotated[int, Query(ge=0, le=1 << 62)] = 0) -> Response:
    """Open incidents and those that are over; with a number that one alone, with its steps."""
    return answer(await pool.admin.health(incident))


@router.post("/devices/{uuid}:quarantine", responses=shows(Incident | None))
async def quarantine(pool: Pool, uuid: str, how: Quarantine | None = None) -> Response:
    """Take a card out of service until it is returned."""
    reason, drain = (how.reason, how.drain) if how else ("", False)
    return answer(await pool.admin.quarantine_device(uuid, reason=reason, drain=drain))


@router.post("/devices/{uuid}:verify", responses=shows(Incident | None))
async def verify(pool: Pool, uuid: str, why: Reason | None = None) -> Response:
    """Have a card tested once nothing holds it; well, it returns."""
    return answer(await pool.admin.verify_device(uuid, reason=why.reason if why else ""))


@router.post("/devices/{uuid}:return", responses=shows(Incident | None))
async def take_back(pool: Pool, uuid: str, how: Return | None = None) -> Response:
    """Take a card back into service. Answers null where nothing was open any more."""
    how = how or Return()
    return answer(await pool.admin.return_device(uuid, reason=how.reason, overrule=how.overrule))
