"""Faults: what may go wrong, when it does, and how it is mended."""

from tests.simulation.faults.injector import Injector
from tests.simulation.faults.kinds import KINDS, Fault, schedule

__all__ = ["KINDS", "Fault", "Injector", "schedule"]
