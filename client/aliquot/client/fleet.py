"""All devices of a pool as columns of bytes: what `Pool.watch_fleet` gives, for screens of the whole pool.

One device or node is better had by `devices` or `node`. Here nothing is unpacked: a console passes 80,000 devices on
as the coordinator has put them together, once for all who look.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A part of a snapshot, or what has changed since; take them in order."""

    layout: int
    """Devices have numbers, which mean the same in all changes of one layout."""
    version: int
    """Everything up to there has been told; 0: the rest of a snapshot follows."""
    resets: bool
    """A snapshot begins: forget what was before."""
    event: bytes = field(repr=False)
    """The contract's `FleetEvent` (`aliquot.v1.pool_pb2.FleetEvent.FromString`), which says what each column means."""
