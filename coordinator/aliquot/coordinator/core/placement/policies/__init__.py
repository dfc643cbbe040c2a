"""The policies that come with the coordinator, by name."""

from __future__ import annotations

from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.policies.simple import BinPack, Spread
from aliquot.coordinator.core.placement.policy import Policy

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Price, BinPack, Spread)}


BY_WORKLOAD = "workload"
"""In place of a policy, for queues and pools: by what a request says that it is."""


def make_policy(name: str) -> Policy:
    """A fresh policy by name. ValueError with the known names when there is none."""
    try:
        return POLICIES[name]()
    except KeyError:
        raise ValueError(f"no placement policy {name!r}; known: {', '.join(sorted(POLICIES))}") from None
