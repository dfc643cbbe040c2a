"""What has a bound of its own is given one that a few leases reach."""

from __future__ import annotations

import pytest

from aliquot.coordinator.core.books import demand as recent


@pytest.fixture(autouse=True)
def _few_late_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "KEPT_MAX", 8)
