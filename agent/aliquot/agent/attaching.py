"""Attaches processes to leases: those that ask over the local socket, and those that the agent starts itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from aliquot.agent.core.model import Holder, ProcessKey, Reservation
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.assembly import environment_of, folders_of
from aliquot.agent.environment import Granted, environment
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.processes.attachments import Attachments
from aliquot.agent.processes.containment import Containment, ContainmentKind, Tracking
from aliquot.agent.processes.proc import Processes

log = logging.getLogger(__name__)


class Attacher(msgspec.Struct, eq=False, kw_only=True):
    """Use from one event loop.

    `visibility`: see `DeviceBackend`.
    """

    containment: Containment
    attachments: Attachments
    limits: LimitSetter
    processes: Processes
    socket_path: str
    visibility: Callable[[Sequence[DeviceInfo]], Mapping[str, str]]

    def attach(self, process: ProcessKey, holder: Holder, owner: int, *, hosted: bool = False) -> Tracking:
        """Attach a process, and what it starts from now on, to a holder. `hosted`: the agent started it. Raises
        `TooManyAttachments`, `OSError`.
        """
        origin = self.processes.cgroup_of(process.pid) or ""
        before = self.containment.belonging(process.pid)
        # Registered before it is moved, so that it is the lease's whatever happens in between. It also stays with the
        # holders that it had before, but its new children will not be in their cgroups.
        for other in before.holders if before is not None else ():
            if other != holder:
                self.attachments.follow(self.attachments.add(other, process, owner, origin), contained=False)
        added = self.attachments.add(holder, process, owner, origin, hosted=hosted)
        placed = self.containment.place(process, holder, hosted=hosted)
        if placed.kind is ContainmentKind.CGROUP:
            self.attachments.follow(added, contained=True)
        else:
            owns_session, owns_group = self.processes.alone_in(process)
            self.attachments.follow(added, owns_session=owns_session, owns_group=owns_group)
        log.info(
            "attached",
            extra={
                "lease_id": holder.lease_id,
                "member": holder.member,
                "pid": process.pid,
                "uid": owner,
                "containment": placed.kind.value,
            },
        )
        return placed

    def forget_hosted(self, holder: Holder) -> None:
        """What the agent had started for a holder is gone. Raises `OSError`."""
        for item in self.attachments.all():
            if item.hosted and item.holder == holder and not self.processes.alive(item.process):
                self.attachments.remove(holder.lease_id, item.process)

    def environment(
        self, records: Sequence[Reservation], present: Mapping[str, str], uid: int
    ) -> tuple[dict[str, str], list[str]]:
        """The variables that a process of these slices must have, given those that it has (`present`), and notes for
        people. Raises `EnforcementError`.
        """
        found = [self._granted(record, present, uid) for record in records]
        return environment([each for each in found if each is not None], present, self.socket_path, self.visibility)

    def folders(self, records: Sequence[Reservation]) -> list[str]:
        """Folders that processes of these slices need. Raises `EnforcementError`."""
        found: list[str] = []
        for record in records:
            if (held := self.limits.held(record)) is not None:
                limited, enforcer = held
                found += folders_of(enforcer, limited)
        return list(dict.fromkeys(found))

    def _granted(self, record: Reservation, present: Mapping[str, str], uid: int) -> Granted | None:
        if (held := self.limits.held(record)) is None:
            return None
        limited, enforcer = held
        variables = environment_of(enforcer, limited, dict(present), uid)
        return Granted(record.spec, limited.device, enforcer.tier, variables)
