"""The register of attached processes and cgroups, in memory and on disk."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from aliquot.agent.core.attribution import AttachedCgroup, Attachment
from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.processes import proc as real_processes
from aliquot.agent.processes.proc import Processes
from aliquot.common.errors import AliquotError

log = logging.getLogger(__name__)

MAX_PER_LEASE = 1024
NOBODY = -1


class TooManyAttachments(AliquotError):
    """More live processes were attached to one lease than the agent keeps track of."""


class Attachments:
    """The register of attached processes."""

    def __init__(self, checkpoint: Checkpoint, processes: Processes = real_processes) -> None:
        self._checkpoint = checkpoint
        self._processes = processes
        self._owners, attachments, cgroups = checkpoint.load_attachments()
        self._by_lease: dict[str, list[Attachment]] = {}
        for item in attachments:
            self._by_lease.setdefault(item.holder.lease_id, []).append(item)
        self._cgroups: dict[str, list[AttachedCgroup]] = {}
        for cgroup in cgroups:
            self._cgroups.setdefault(cgroup.holder.lease_id, []).append(cgroup)
        self._order = max((item.order for item in attachments), default=0)
        self._all: tuple[Attachment, ...] | None = None

    def all(self) -> tuple[Attachment, ...]:
        """Every attachment: the same object, as long as none has changed."""
        if self._all is None:
            self._all = tuple(item for items in self._by_lease.values() for item in items)
        return self._all

    def cgroups(self) -> list[AttachedCgroup]:
        """Every attached cgroup."""
        return [item for items in self._cgroups.values() for item in items]

    def attach_cgroup(self, item: AttachedCgroup) -> None:
        """Register a cgroup in place of any other of its holder; durable against the death of the agent when this
        returns. Raises `OSError`.
        """
        lease_id = item.holder.lease_id
        known = self._cgroups.get(lease_id, [])
        if item in known:
            return
        kept = [other for other in known if other.holder != item.holder]
        self._save(lease_id, self._by_lease.get(lease_id, []), [*kept, item])
        self._cgroups[lease_id] = [*kept, item]

    def owner_of(self, lease_id: str) -> int | None:
        """The user id that may attach; None before the first attachment."""
        return self._owners.get(lease_id)

    def add(
        self, holder: Holder, process: ProcessKey, uid: int, origin_cgroup: str, *, hosted: bool = False
    ) -> Attachment:
        """Register a process; durable against the death of the agent when this returns. `hosted`: the agent started it.

        Raises `TooManyAttachments` and `OSError`.
        """
        items = self._by_lease.get(holder.lease_id, [])
        known = next((item for item in items if item.holder == holder and item.process == process), None)
        if known is not None:
            return known
        if len(items) >= MAX_PER_LEASE:
            items = [item for item in items if self._processes.alive(item.process)]
        if len(items) >= MAX_PER_LEASE:
            raise TooManyAttachments(
                f"{len(items)} processes are attached to lease {holder.lease_id}",
                hint="attach the parent of your workers; what it starts belongs to the lease by itself",
            )
        self._order += 1
        added = Attachment(
            holder=holder,
            process=process,
            order=self._order,
            since_ticks=self._processes.now_ticks(),
            origin_cgroup=origin_cgroup,
            hosted=hosted,
        )
        owner = self._owners.get(holder.lease_id, uid)
        self._save(holder.lease_id, [*items, added], owner=owner)
        self._owners[holder.lease_id] = owner
        self._by_lease[holder.lease_id] = [*items, added]
        self._all = None
        return added

    def follow(
        self, added: Attachment, *, contained: bool = False, owns_session: bool = False, owns_group: bool = False
    ) -> None:
        """Write down how what an attached process starts is followed. Raises `OSError`."""
        lease_id = added.holder.lease_id
        now = replace(added, contained=contained, owns_session=owns_session, owns_group=owns_group)
        items = [now if item == added else item for item in self._by_lease.get(lease_id, [])]
        self._save(lease_id, items)
        self._by_lease[lease_id] = items
        self._all = None

    def of_process(self, lease_id: str, process: ProcessKey) -> list[Attachment]:
        """A process's attachments to a lease."""
        return [item for item in self._by_lease.get(lease_id, []) if item.process == process]

    def remove(self, lease_id: str, process: ProcessKey) -> None:
        """A process does not belong to a lease any more. Raises `OSError`."""
        kept = [item for item in self._by_lease.get(lease_id, []) if item.process != process]
        if lease_id in self._owners:
            self._save(lease_id, kept)
            self._by_lease[lease_id] = kept
            self._all = None

    def forget(self, lease_id: str) -> None:
        """The lease holds nothing here any more."""
        self._owners.pop(lease_id, None)
        self._by_lease.pop(lease_id, None)
        self._all = None
        self._cgroups.pop(lease_id, None)
        try:
            self._checkpoint.forget_attachments(lease_id)
        except OSError as error:
            log.warning("the attachments of lease %s could not be removed: %s", lease_id, error)

    def _save(
        self,
        lease_id: str,
        items: Sequence[Attachment],
        cgroups: Sequence[AttachedCgroup] | None = None,
        owner: int | None = None,
    ) -> None:
        owner = self._owners.get(lease_id, NOBODY) if owner is None else owner
        kept = self._cgroups.get(lease_id, ()) if cgroups is None else cgroups
        self._checkpoint.save_attachments(lease_id, owner, items, kept)
