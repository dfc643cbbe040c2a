"""One rung, held by different means on devices of different vendors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot.agent.core.model import Holder
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError, Enforcer, Limited
from aliquot.common.tiers import Tier

DEFAULT_VENDOR = "nvidia"
"""Of devices that an older record or trace describes without one."""


def vendor_of(device: DeviceInfo) -> str:
    """As tiers are listed by it."""
    return device.vendor.lower() or DEFAULT_VENDOR


class ByVendor:
    """See `base.Enforcer`: asks the one for the device's vendor. `own`: all tiers that are a vendor's, each with the
    vendor's lower-case name; more may come.
    """

    def __init__(self, tier: Tier, own: Iterable[tuple[str, Enforcer]]) -> None:
        self.tier = tier
        self._own = own

    @property
    def _enforcers(self) -> dict[str, Enforcer]:
        return {vendor: enforcer for vendor, enforcer in self._own if enforcer.tier is self.tier}

    def of(self, limited: Limited) -> Enforcer:
        """Who holds a device's slices. Raises `EnforcementError` where nobody does."""
        enforcer = self._enforcers.get(vendor_of(limited.device))
        if enforcer is None:
            raise EnforcementError(self._why_none(limited))
        return enforcer

    def available(self, limited: Limited) -> str:
        """What that one says; a vendor without one has no such tier."""
        enforcer = self._enforcers.get(vendor_of(limited.device))
        return self._why_none(limited) if enforcer is None else enforcer.available(limited)

    def apply(self, limited: Limited) -> None:
        """See `base.Enforcer`."""
        self.of(limited).apply(limited)

    def read_back(self, limited: Limited) -> bool:
        """See `base.Enforcer`."""
        return self.of(limited).read_back(limited)

    def clear(self, limited: Limited) -> None:
        """See `base.Enforcer`."""
        self.of(limited).clear(limited)

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """See `base.Enforcer`."""
        return self.of(limited).environment(limited)

    def forget(self, holder: Holder) -> None:
        """All of them."""
        for enforcer in self._enforcers.values():
            enforcer.forget(holder)

    def _why_none(self, limited: Limited) -> str:
        return f"there is no such tier for devices of {vendor_of(limited.device)}"
