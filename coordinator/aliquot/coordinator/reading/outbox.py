"""Everything that follows durable facts, in one fixed order: the View, Watch, metrics, waiting callers, agents.

The writer calls it once per durable group, before it resolves that group's answers; so whoever has an answer can read
what it says. Subscribers get records that can't be taken back, and nobody gets anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.state import Node
from aliquot.coordinator.core.tenancy.lending import NodeMove
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.reading.waiting import Waiters
from aliquot.coordinator.reading.watch import WatchHub
from aliquot.coordinator.writing.commits import Commit


class LeaseFollower(Protocol):
    """Somebody who follows leases one by one: keep-alive, the agents' sessions, the metrics."""

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """A lease has a new durable record. At least one of the two is there."""


class NodeFollower(Protocol):
    """Somebody who follows nodes."""

    def node_changed(self, node_id: str, node: Node | None) -> None:
        """A node has a new durable record, or none any more."""


class Outbox:
    """See the module's docstring."""

    def __init__(self, view: View, hub: WatchHub, waiters: Waiters) -> None:
        self.view = view
        self.hub = hub
        self.waiters = waiters
        self._lease_followers: list[LeaseFollower] = []
        self._node_followers: list[NodeFollower] = []
        self.on_node_moved: list[Callable[[NodeMove], None]] = []
        """Called for each node that has changed hands between projects."""

    def follow_leases(self, follower: LeaseFollower) -> None:
        """Call it for each lease that changes."""
        self._lease_followers.append(follower)

    def follow_nodes(self, follower: NodeFollower) -> None:
        """Call it for each node that changes."""
        self._node_followers.append(follower)

    def publish(self, commit: Commit) -> None:
        """A group is durable."""
        changes = self.view.apply(commit)
        self.hub.publish(commit)
        changed = self.waiters.changed
        for old, new in changes:
            for follower in self._lease_followers:
                follower.lease_changed(old, new)
            lease = new or old
            if lease is not None:
                changed(lease.lease_id, new)
        for move in commit.node_moves:
            for follow in self.on_node_moved:
                follow(move)
        for node_id, node in commit.nodes:
            for node_follower in self._node_followers:
                node_follower.node_changed(node_id, node)

    def load(self, commit: Commit) -> None:
        """Take everything from a State that was just replayed. Followers hear of what differs from what they knew."""
        known_leases = {lease_id for lease_id, _ in commit.leases}
        known_nodes = {node_id for node_id, _ in commit.nodes}
        known_devices = {uuid for uuid, _ in commit.devices}
        gone = Commit(
            seq=commit.seq,
            at_ms=commit.at_ms,
            leader_epoch=commit.leader_epoch,
            leases=tuple((lease_id, None) for lease_id in self.view.leases if lease_id not in known_leases)
            + tuple(pair for pair in commit.leases if self.view.leases.get(pair[0]) != pair[1]),
            nodes=tuple((node_id, None) for node_id in self.view.nodes if node_id not in known_nodes)
            + tuple(pair for pair in commit.nodes if self.view.nodes.get(pair[0]) != pair[1]),
            devices=tuple((uuid, None) for uuid in self.view.devices if uuid not in known_devices) + commit.devices,
            books=commit.books,
        )
        self.hub.restart(commit.seq, commit.at_ms)
        self.publish(gone)
