"""The placement engine and its policies."""

from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.placement.policies import POLICIES, make_policy
from aliquot.coordinator.core.placement.policy import Policy
from aliquot.coordinator.core.placement.reasons import Reason

__all__ = ["POLICIES", "Engine", "Policy", "Reason", "make_policy"]
