"""Ends the processes of slices: which ones, and when. `signals` sends the signals."""

from __future__ import annotations

import signal
from collections.abc import Callable

import msgspec

from aliquot.agent.core.model import ProcessKey, Reservation
from aliquot.agent.processes.containment import Containment
from aliquot.agent.processes.proc import Processes
from aliquot.agent.processes.signals import Signaller, Target
from aliquot.agent.state import NodeState

SURVIVORS_S = 10.0


class Ender(msgspec.Struct, eq=False):
    """Ends processes of slices that are told to stop.

    A slice that is the last of its member to run takes all processes of the member with it. While the member
    has other slices that go on (an elastic lease that shrinks), only the processes that the driver lists on
    the stopping slice's device are ended.
    """

    state: NodeState
    containment: Containment
    signaller: Signaller
    processes: Processes
    monotonic_s: Callable[[], float]
    _asked: dict[str, set[ProcessKey]] = {}
    _killed_s: dict[str, float] = {}

    def live(self, record: Reservation) -> list[ProcessKey] | None:
        """The processes that have to go, still alive; None while that is not known."""
        holder = record.spec.holder
        if not self.state.running(holder):
            return self.containment.members(holder)
        device = self.state.devices.get(record.spec.device_uuid)
        stop = record.stop
        if device is None or device.usage is None or stop is None or device.sampled_monotonic_ms <= stop.learned_ms:
            return None
        listed = next((piece for piece in device.usage.slices if piece.reservation.slice_id == record.slice_id), None)
        keys = [use.process for use in listed.uses if use.process is not None] if listed is not None else []
        return [key for key in keys if self.processes.alive(key)]

    def ask(self, record: Reservation) -> None:
        """The lease's stop signal to every process that has to go and was not asked before."""
        what = signal.Signals[f"SIG{record.spec.stop_signal}"]
        asked = self._asked.setdefault(record.slice_id, set())
        for process in self.live(record) or []:
            if process not in asked:
                asked.add(process)
                self.signaller.send(self._target(record, process), what)

    def kill(self, record: Reservation) -> None:
        """SIGKILL to every process that has to go; where there is a cgroup, nothing in it can fork meanwhile."""
        holder = record.spec.holder
        self._killed_s.setdefault(record.slice_id, self.monotonic_s())
        alone = not self.state.running(holder)
        if alone:
            self.containment.freeze(holder, frozen=True)
        try:
            for process in self.live(record) or []:
                self.signaller.send(self._target(record, process), signal.SIGKILL)
        finally:
            if alone:
                self.containment.freeze(holder, frozen=False)

    def survivors(self, record: Reservation) -> str:
        """Which processes live on long after SIGKILL, in words; empty when none do. Such a process waits in
        the kernel, usually for a device that does not answer.
        """
        since_s = self._killed_s.get(record.slice_id)
        if since_s is None or self.monotonic_s() - since_s < SURVIVORS_S:
            return ""
        pids = ", ".join(str(process.pid) for process in self.live(record) or [])
        return f"still alive long after SIGKILL, probably waiting for a device in the kernel: {pids}" if pids else ""

    def forget(self, slice_id: str) -> None:
        """The slice has ended, or was reprieved."""
        self._asked.pop(slice_id, None)
        self._killed_s.pop(slice_id, None)

    def _target(self, record: Reservation, process: ProcessKey) -> Target:
        stop = record.stop
        reason = stop.reason if stop is not None and stop.reason else "its slice is ordered to stop"
        holder = self.containment.holder_like(process.pid, record.spec.holder)
        return Target(process, holder, reason, record.slice_id)
