"""The parts that a coordinator loads only where its settings name them, and the services that few ask for, which the
first call loads. A feature that nobody uses costs nothing.

Each is a row in `PARTS`: where it is, and which extra of the distribution brings what it needs. Whoever reads the
setting loads it by its name here, and gives what was found its type. A part is not imported anywhere else in the
coordinator, but for its type; `tests/coordinator/test_footprint.py` holds what one with default settings loads.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aliquot.common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """Something that can be left out."""

    place: str
    """`module:attribute`."""
    extra: str = "coordinator"
    """Of the distribution; it brings the libraries that the part needs."""


PARTS: Mapping[str, Part] = {
    "aliquot.v1.AccessService": Part("aliquot.coordinator.rpc.access_service:AccessService"),
    "aliquot.v1.AdminService": Part("aliquot.coordinator.rpc.admin_service:AdminService"),
    "aliquot.v1.SupplyService": Part("aliquot.coordinator.rpc.supply_service:SupplyService"),
    "aliquot.v1.EnrolmentService": Part("aliquot.coordinator.rpc.enrolment_service:EnrolmentService"),
    "grpc.reflection.v1alpha.ServerReflection": Part(
        "grpc_reflection.v1alpha._async:ReflectionServicer", "coordinator"
    ),
    "login by OpenID": Part("aliquot.coordinator.logins.oidc:OidcLogins"),
    "login of pods": Part("aliquot.coordinator.logins.pods:PodLogins"),
    "forecasts": Part("aliquot.coordinator.forecasting:Forecasting"),
    "PostgreSQL": Part("aliquot.coordinator.writing.journal.postgres:PostgresJournal", "postgres"),
    "standby": Part("aliquot.coordinator.writing.standby:Standby", "postgres"),
    "leadership by PostgreSQL": Part("aliquot.coordinator.writing.leadership.postgres:PostgresLeadership", "postgres"),
    "tracing": Part("aliquot.coordinator.reading.tracing.exporting:Tracing", "tracing"),
}


def load(name: str) -> Any:  # noqa: ANN401 - each part has a type of its own
    """The class of this part. Raises ConfigError where what it needs is not installed."""
    part = PARTS[name]
    module, _, attribute = part.place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(
            f"{name} is set, but not there: {error}", hint=f"pip install 'aliquot[{part.extra}]'"
        ) from error
