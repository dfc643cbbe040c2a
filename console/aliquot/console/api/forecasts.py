"""What demand will be, for the calendar."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from aliquot.client.forecast import Forecast
from aliquot.console.api.answers import answer, shows
from aliquot.console.api.callers import Pool

router = APIRouter(tags=["forecasts"])

_SERIES = "tenant/vision, model/A100-80 or pool/a: that one, with its past; empty: the whole pool; left out: all."


@router.get("/forecast", responses=shows(Forecast))
async def forecast(
    pool: Pool, series: Annotated[str | None, Query(max_length=256, description=_SERIES)] = None
) -> Response:
    """Demand by the hour, as it is expected to be, of what the caller may see. Decides nothing."""
    return answer(await pool.forecast(series))
