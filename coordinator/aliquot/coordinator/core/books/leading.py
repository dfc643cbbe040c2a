"""What happens to the pool as a whole: somebody leads it, and prices are learnt."""

from __future__ import annotations

from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.values.fact import Fact


class LeaderStarted(Fact, frozen=True, tag="leader"):
    """A coordinator took over, and every TTL starts again in full; or the one that leads goes on in a higher epoch."""

    leader_epoch: int


# --------------------
# What placement has learnt.


class PricesLearnt(Fact, frozen=True, tag="prices"):
    """The price policy has new prices, learnt from what arrived. Other policies ignore them."""

    table: PriceTable
