"""Tier `none`: a whole device. Nobody else is on it, so there is nobody to protect and nothing to set."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.agent.core.model import Holder
from aliquot.agent.enforce.base import Limited
from aliquot.common.tiers import Tier


class NoEnforcer:
    """See `base.Enforcer`."""

    tier = Tier.NONE

    def available(self, limited: Limited) -> str:
        """Only for whole devices."""
        return "" if limited.whole_device else "only whole devices may be held without a limit"

    def apply(self, limited: Limited) -> None:
        """Nothing to set."""

    def read_back(self, limited: Limited) -> bool:
        """Exclusive holding is the coordinator's and the book's doing; there is nothing on the device to read."""
        return limited.whole_device

    def clear(self, limited: Limited) -> None:
        """Nothing to clear."""

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """Nothing to add."""
        return {}

    def forget(self, holder: Holder) -> None:
        """Nothing is kept."""
