"""When a request is expected to start is told in the units that people use for so long."""

from __future__ import annotations

import time

import pytest
from rich.text import Text

from aliquot.cli._views import explanation_view
from aliquot.client import Explanation

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("minutes", "said"),
    [(2, "in 1m59s"), (887, "in 14h46m"), (4 * 24 * 60, "in 3d23h")],
)
def test_a_wait_is_told_as_exactly_as_it_is_long(monkeypatch: pytest.MonkeyPatch, minutes: int, said: str) -> None:
    now_s = 1_790_000_000.0
    monkeypatch.setattr(time, "time", lambda: now_s)
    start_ms = int(now_s * 1000) + minutes * MINUTE_MS - 1
    waits = Explanation(fits_now=False, impossible=False, summary="does not fit now", expected_start_ms=start_ms)
    told = [str(part) for part in explanation_view(waits) if isinstance(part, Text)]
    assert f"expected to start {said}" in told
