"""What to tell a caller who asked for a model that the pool does not have."""

from __future__ import annotations

from aliquot.common import catalog
from aliquot.coordinator.core.values.errors import NeverFits
from aliquot.coordinator.core.values.types import Demand
from aliquot.coordinator.reading.totals import Totals

_MODELS_SHOWN = 8


def name_near_models(error: NeverFits, demand: Demand, totals: Totals) -> None:
    """Replace the hint where the obstacle is that no device has a model that was asked for."""
    asked = [name for names in demand.models for name in names]
    there = sorted({model for (_, model), of_class in totals.classes.items() if of_class.devices})
    if not asked or not there or set(asked) & set(there):
        return
    near = list(dict.fromkeys(name for wanted in asked for name in catalog.nearest_names(wanted, there)))
    meant = f"; did you mean {' or '.join(near[:2])}?" if near else ""
    more = f" and {len(there) - _MODELS_SHOWN} more" if len(there) > _MODELS_SHOWN else ""
    error.hint = f"the pool has {', '.join(there[:_MODELS_SHOWN])}{more}{meant}"
