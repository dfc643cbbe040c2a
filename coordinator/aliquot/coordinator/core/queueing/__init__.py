"""Requests that wait, and the order in which they are tried."""

from aliquot.coordinator.core.queueing.lines import AdmissionPass, Waiting, WaitingLines

__all__ = ["AdmissionPass", "Waiting", "WaitingLines"]
