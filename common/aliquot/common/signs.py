"""The words in which agents and coordinators speak of sick cards. Numbers are those of the contract, and of facts."""

from __future__ import annotations

import enum


class Severity(enum.IntEnum):
    """Whom a sign concerns."""

    NONE = 0
    LEASE = 1
    """The programs of one lease."""
    DEGRADED = 2
    """The card computes, but should get nothing new."""
    FATAL = 3
    """What runs there can't be relied on."""


class Scope(enum.IntEnum):
    """How far a sign reaches."""

    DEVICE = 0
    CARD = 1
    """The card with its MIG instances."""
    ISLAND = 2
    """All cards of the node that fast links join with it."""
    NODE = 3


class Remedy(enum.IntEnum):
    """What is to be done about it."""

    NONE = 0
    RESET = 1
    REBOOT = 2
    SERVICE = 3
    """A person."""
    VERIFY = 4
    """Nothing: it is tested."""
