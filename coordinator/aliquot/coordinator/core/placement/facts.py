"""What placement has learnt. See `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.placement.prices import PriceTable


class PricesLearnt(Fact, frozen=True, tag="prices"):
    """The price policy has new prices, learnt from what arrived. Other policies ignore them."""

    table: PriceTable
