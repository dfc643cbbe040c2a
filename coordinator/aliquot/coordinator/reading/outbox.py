"""Passes durable changes on, in one fixed order: to the View, watchers, waiting callers and followers.

The writer calls it once per durable group, before it resolves that group's answers; so whoever has an answer can read
what it says. Followers get records that can't be taken back, and nobody gets anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aliquot.coordinator.core.books.enrolment import Enrolled, Generation
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.reading.waiting import Waiters
from aliquot.coordinator.reading.watch import WatchHub
from aliquot.coordinator.writing.commits import Commit


class Follower:
    """Is called with durable changes one by one. Derive from it, and override what you need."""

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """A lease has a new durable record. At least one of the two is there."""

    def node_changed(self, node_id: str, node: Node | None) -> None:
        """A node has a new durable record, or none any more."""

    def device_changed(self, uuid: str) -> None:
        """What is known of a device beside its node has changed."""

    def callers_changed(self, principals: frozenset[str], token_ids: frozenset[str]) -> None:
        """These have new durable records, or none any more; the View has them."""

    def enrolment_changed(self, node_id: str, enrolled: Enrolled | None) -> None:
        """Another key speaks for a node, or none any more."""

    def authority_changed(self, generations: tuple[Generation, ...]) -> None:
        """A generation of the pool's authority has begun, or was retired; these are all."""


class Outbox:
    """See the module's docstring. What was durable before is in the View, where followers have read it themselves."""

    def __init__(self, view: View, hub: WatchHub, waiters: Waiters, followers: Iterable[Follower]) -> None:
        self._view = view
        self._hub = hub
        self._waiters = waiters
        followers = tuple(followers)
        # Only who overrides a method is called by it: most follow one kind of record, and leases change
        # thousands of times a second.
        self._of: dict[str, list[Callable[..., None]]] = {
            name: [getattr(each, name) for each in followers if getattr(type(each), name) is not method]
            for name, method in vars(Follower).items()
            if name.endswith("_changed")
        }

    def publish(self, commit: Commit) -> None:
        """A group is durable."""
        changes = self._view.apply(commit)
        self._hub.publish(commit)
        self._tell(commit, changes)

    def load(self, commit: Commit) -> None:
        """Replace everything by a State that was just replayed. Followers are told what differs."""
        view = self._view
        known_leases = {lease_id for lease_id, _ in commit.leases}
        known_nodes = {node_id for node_id, _ in commit.nodes}
        known_devices = {uuid for uuid, _ in commit.devices}
        changed = Commit(
            seq=commit.seq,
            at_ms=commit.at_ms,
            leader_epoch=commit.leader_epoch,
            leases=tuple((lease_id, None) for lease_id in view.leases if lease_id not in known_leases)
            + tuple(pair for pair in commit.leases if view.leases.get(pair[0]) != pair[1]),
            nodes=tuple((node_id, None) for node_id in view.nodes if node_id not in known_nodes)
            + tuple(pair for pair in commit.nodes if view.nodes.get(pair[0]) != pair[1]),
            devices=tuple((uuid, None) for uuid in view.devices if uuid not in known_devices) + commit.devices,
            books=commit.books,
        )
        changes = view.apply(changed)
        self._hub.restart(commit.seq, commit.at_ms)
        self._tell(changed, changes)

    def _tell(self, commit: Commit, changes: Iterable[tuple[Lease | None, Lease | None]]) -> None:
        if any(callers := self._view.callers.changed):
            self._call("callers_changed", [callers])
        changed, of_leases = self._waiters.changed, self._of["lease_changed"]
        for old, new in changes:
            for follow_lease in of_leases:
                follow_lease(old, new)
            lease = new or old
            if lease is not None:
                changed(lease.lease_id, new)
        self._call("node_changed", commit.nodes)
        self._call("device_changed", [(uuid,) for uuid, _ in commit.devices])
        self._call("enrolment_changed", commit.books.enrolled)
        if commit.books.generations is not None:
            self._call("authority_changed", [(commit.books.generations,)])

    def _call(self, name: str, changes: Iterable[tuple[object, ...]]) -> None:
        for change in changes:
            for follow in self._of[name]:
                follow(*change)
