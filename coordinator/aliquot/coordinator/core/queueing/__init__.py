"""Requests that wait, and the order in which they are tried."""

from aliquot.coordinator.core.queueing.lines import Head, LineKey, TenantLines, WaitingLines
from aliquot.coordinator.core.queueing.passes import AdmissionPass

__all__ = ["AdmissionPass", "Head", "LineKey", "TenantLines", "WaitingLines"]
