"""The placement engine and its policies."""

from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.placement.explain import Reason
from aliquot.coordinator.core.placement.policies import POLICIES, make_policy
from aliquot.coordinator.core.placement.policy import Policy

__all__ = ["POLICIES", "Engine", "Policy", "Reason", "make_policy"]
