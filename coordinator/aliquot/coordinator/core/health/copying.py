"""Whether a card copies as fast as others of its kind: worn or throttled memory is slow before it is wrong.

Rates are those within a card's own memory, so that nothing depends on the node. A card is compared with the median of
others of its kind that passed their tests; of fewer than `OTHERS_MIN` nothing follows.
"""

from __future__ import annotations

from aliquot.coordinator.core.health.cover import devices_on
from aliquot.coordinator.core.planning import Planning
from aliquot.coordinator.core.state import Node
from aliquot.coordinator.core.types import NodeSpec

OTHERS_MIN = 3
LEAST_PERMILLE = 800
"""Of the median."""


def kind_of(spec: NodeSpec, unit: str) -> str:
    """The model of a card, or the model and profile of an instance."""
    device = next(iter(devices_on(spec, (unit,))), None)
    if device is None:
        return ""
    return f"{device.model} {device.mig_profile}" if device.uuid == unit and device.mig_profile else device.model


def too_slow(state: Planning, node: Node, unit: str, mb_s: int) -> str:
    """Why this is too slow; empty: it is not, or nobody knows."""
    kind = kind_of(node.spec, unit)
    others = sorted(rate.mb_s for other, rate in state.health.copies.items() if rate.model == kind and other != unit)
    if not kind or len(others) < OTHERS_MIN:
        return ""
    median = others[len(others) // 2]
    if mb_s * 1000 >= median * LEAST_PERMILLE:
        return ""
    return (
        f"{unit} copies {mb_s / 1000:.1f} GB/s within itself; the median of {len(others)} {kind} is {median / 1000:.1f}"
    )
