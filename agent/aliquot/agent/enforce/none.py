"""Tier `none`: a whole device. Nobody else is on it, so there is nobody to protect and nothing to set."""

from __future__ import annotations

from aliquot.agent.enforce.base import Limited, NothingSet
from aliquot.common.tiers import Tier


class NoEnforcer(NothingSet):
    """See `base.Enforcer`."""

    tier = Tier.NONE

    def available(self, limited: Limited) -> str:
        """Only for whole devices."""
        return "" if limited.whole_device else "only whole devices may be held without a limit"

    def read_back(self, limited: Limited) -> bool:
        """Exclusive holding is the coordinator's and the book's doing; there is nothing on the device to read."""
        return limited.whole_device
