"""Demand for those who only read: what decides is given this, and mypy refuses the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class DemandView(Protocol):
    """`DemandBooks`."""

    @property
    def latest(self) -> int: ...  # noqa: D102
    def series(self) -> Mapping[str, list[int | None]]: ...  # noqa: D102
