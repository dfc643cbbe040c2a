"""Whether traces are sent, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.common.errors import ConfigError
from aliquot.coordinator.parts import load
from aliquot.coordinator.settings.config import Settings

if TYPE_CHECKING:
    from aliquot.coordinator.reading.tracing.exporting import Tracing  # an extra


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
