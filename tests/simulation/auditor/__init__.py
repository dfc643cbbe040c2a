"""The auditor: a small model of its own of what may be true, which shares no code with what it audits.

It reads the bytes that become durable, the messages on the wire, what agents write down, and what really happens on
the simulated machines; it never asks production code anything. Whatever contradicts the rules in these modules is a
violation.
"""

from tests.simulation.auditor.auditor import Auditor

__all__ = ["Auditor"]
