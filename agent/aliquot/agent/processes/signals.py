"""The only place that sends signals.

A signal goes to a process only when all of this holds in the moment before it is sent, while a pidfd pins the
process so that its pid can't come to mean another: it has the start time it was identified by; it still
belongs to the holder it is to be signalled for (by cgroup or proven attachment, looked at afresh); that
holder still has a reservation here; and it is neither the agent, nor above it, nor init. Anything else is
refused, and every outcome is a line in the audit log: who, which signal, which lease, why.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.agent.processes import proc as real_processes
from aliquot.agent.processes.proc import Processes

REPEAT_S = 5.0
"""The same signal goes to the same process no more often: it has it, and the log should stay readable."""

audit = logging.getLogger("aliquot.agent.audit")


class Outcome(enum.StrEnum):
    """What became of a signal."""

    SENT = "sent"
    GONE = "gone"
    """The process had ended."""
    NOT_THE_SAME = "pid taken by another process"
    NOT_ITS_LEASE = "not a process of the lease"
    NOT_HELD = "no reservation here"
    PROTECTED = "the agent itself, or above it"
    FORBIDDEN = "not permitted"
    REPEATED = "sent a moment ago"


class Target(msgspec.Struct, frozen=True):
    """Whom to signal, on whose account, and why."""

    process: ProcessKey
    holder: Holder
    why: str
    slice_id: str = ""


class Kernel(Protocol):
    """Processes pinned by a descriptor, so that a pid can't come to mean another one."""

    def available(self) -> str:
        """Empty when processes can be signalled safely here, else what is missing."""

    def own_pid(self) -> int:
        """The agent's."""

    def pin(self, pid: int) -> int:
        """A descriptor of the process. Raises `OSError`."""

    def ended(self, pinned: int) -> bool:
        """Whether it has ended."""

    def send(self, pinned: int, what: signal.Signals) -> None:
        """Deliver a signal. Raises `OSError`."""

    def unpin(self, pinned: int) -> None:
        """Close the descriptor. Raises `OSError`."""


class PidFds:
    """Linux' own."""

    def available(self) -> str:
        """See `Kernel`."""
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            return "this Python was built without pidfd support"
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError as error:
            return f"the kernel offers no pidfd ({error.strerror}); Linux 5.3 and newer do"
        return ""

    def own_pid(self) -> int:
        """See `Kernel`."""
        return os.getpid()

    def pin(self, pid: int) -> int:
        """See `Kernel`."""
        return os.pidfd_open(pid)

    def ended(self, pinned: int) -> bool:
        """A pidfd becomes readable when its process has ended."""
        poll = select.poll()
        poll.register(pinned, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, pinned: int, what: signal.Signals) -> None:
        """See `Kernel`."""
        signal.pidfd_send_signal(pinned, what)

    def unpin(self, pinned: int) -> None:
        """See `Kernel`."""
        os.close(pinned)


class Signaller:
    """Sends signals, each checked and written down.

    `belongs(pid, holder)` looks at the process afresh; `held(holder)` says whether a reservation stands behind it.
    `before_kill` is told of each SIGKILL that is sent now: it is bounded in time, and raises nothing.
    """

    def __init__(
        self,
        belongs: Callable[[int, Holder], bool],
        held: Callable[[Holder], bool],
        before_kill: Callable[[Target], None] = lambda target: None,
        *,
        processes: Processes = real_processes,
        kernel: Kernel | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._belongs = belongs
        self._held = held
        self._processes = processes
        self._kernel: Kernel = kernel or PidFds()
        self._monotonic_s = monotonic_s
        self._before_kill = before_kill
        self.outcomes: dict[tuple[str, Outcome], int] = {}
        """(signal name, outcome) -> how often, for metrics."""
        self._sent_s: dict[tuple[ProcessKey, signal.Signals], float] = {}

    def send(self, target: Target, what: signal.Signals) -> Outcome:
        """Check, send, write down. Raises nothing: a signal that can't be sent is an outcome."""
        now_s = self._monotonic_s()
        if now_s - self._sent_s.get((target.process, what), float("-inf")) < REPEAT_S:
            return Outcome.REPEATED
        outcome = self._send(target, what)
        if outcome is Outcome.SENT:
            self._sent_s = {key: at for key, at in self._sent_s.items() if now_s - at < REPEAT_S}
            self._sent_s[target.process, what] = now_s
        self.outcomes[what.name, outcome] = self.outcomes.get((what.name, outcome), 0) + 1
        level = logging.WARNING if outcome in (Outcome.SENT, Outcome.FORBIDDEN) else logging.INFO
        audit.log(
            level,
            "signal %s to pid %d: %s; lease %s: %s",
            what.name,
            target.process.pid,
            outcome.value,
            target.holder.lease_id,
            target.why,
            extra={
                "signal": what.name,
                "outcome": outcome.name,
                "pid": target.process.pid,
                "start_ticks": target.process.start_ticks,
                "lease_id": target.holder.lease_id,
                "lease_epoch": target.holder.lease_epoch,
                "member": target.holder.member,
                "slice_id": target.slice_id,
                "why": target.why,
            },
        )
        return outcome

    def is_agent_or_init(self, pid: int) -> bool:
        """Such a process is never attached: ending its lease would freeze the agent, or the machine."""
        return pid <= 1 or pid == self._kernel.own_pid()

    def _protects(self, pid: int) -> bool:
        """Whether this is the agent, above it, or init: such a process is never signalled."""
        return self.is_agent_or_init(pid) or pid in self._processes.ancestors(self._kernel.own_pid())

    def _send(self, target: Target, what: signal.Signals) -> Outcome:
        pid = target.process.pid
        if self._protects(pid):
            return Outcome.PROTECTED
        try:
            pinned = self._kernel.pin(pid)
        except ProcessLookupError:
            return Outcome.GONE
        except OSError:
            return Outcome.FORBIDDEN
        try:
            # From here on the process can't be replaced unnoticed: all that is read of the pid is read of the
            # process that the pidfd pins, or of nobody.
            now = self._processes.key_of(pid)
            if now is None:
                return Outcome.GONE
            if now != target.process:
                return Outcome.NOT_THE_SAME
            if not self._held(target.holder):
                return Outcome.NOT_HELD
            if not self._belongs(pid, target.holder):
                return Outcome.NOT_ITS_LEASE
            if self._kernel.ended(pinned):
                return Outcome.GONE
            if what is signal.SIGKILL:
                self._before_kill(target)
            self._kernel.send(pinned, what)
        except ProcessLookupError:
            return Outcome.GONE
        except PermissionError:
            return Outcome.FORBIDDEN
        finally:
            with contextlib.suppress(OSError):
                self._kernel.unpin(pinned)
        return Outcome.SENT
