"""What leases make of what they hold, as messages."""

from __future__ import annotations

from aliquot.common.fields import Writer
from aliquot.coordinator.core.books.use import LeaseUse
from aliquot.coordinator.core.known.use_windows import Efficiency
from aliquot.v1 import types_pb2

_EFFICIENCY = ("efficiency_permille", "efficiency_p95_permille", "known_permille")

USE = Writer(
    types_pb2.LeaseUse,
    LeaseUse,
    {"action": lambda use, _: use.action.value if use.warned else ""},
    left_out=dict.fromkeys(_EFFICIENCY, "see `add_efficiency`"),
)


def add_efficiency(message: types_pb2.LeaseUse, efficiency: Efficiency | None) -> None:
    """What a lease makes of its share, where that is known."""
    if efficiency is not None:
        message.efficiency_permille = efficiency.median_permille
        message.efficiency_p95_permille = efficiency.p95_permille
        message.known_permille = efficiency.known_permille
