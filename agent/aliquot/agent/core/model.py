"""The values of the agent's core: a slice as ordered, its reservation, and what is true of it now.

A `Reservation` is what must survive a crash: the slice as it was ordered, and whether it is to run or to stop. Whether
its limit is set is not recorded: it is read back from the device after every start. All times are milliseconds of the
machine's monotonic clock unless a name says otherwise.
"""

from __future__ import annotations

import enum

import msgspec

from aliquot.common.limits import DEFAULT_GRACE_S, WHOLE_SHARE_MILLI
from aliquot.common.stopping import DEFAULT_STOP_SIGNAL
from aliquot.common.tiers import Tier

DEFAULT_GRACE_MS = DEFAULT_GRACE_S * 1000


class Holder(msgspec.Struct, frozen=True, order=True):
    """Whose processes they are: one member of one grant of a lease.

    The epoch belongs to it because a lease that went back to its queue may be granted again on the same node
    while processes of the former grant are still being ended: those must not be taken for the new one's.
    """

    lease_id: str
    lease_epoch: int
    member: int


class SliceSpec(msgspec.Struct, frozen=True):
    """A slice as the coordinator ordered it."""

    slice_id: str
    lease_id: str
    lease_epoch: int
    device_uuid: str
    share_milli: int
    memory_bytes: int
    member: int = 0
    min_tier: Tier | None = None
    """The weakest it may be held by; None: any."""
    grace_ms: int = DEFAULT_GRACE_MS
    """Between the stop signal and SIGKILL."""
    secret_sha256: bytes = b""
    tenant: str = ""
    queue: str = ""
    serve: str = ""
    """The name of what is to serve it; empty: its processes attach themselves."""
    serving_credential_sha256: bytes = b""
    """Of what its clients show to the process that serves it."""
    lender: str = ""
    """The slice on its device whose share it uses: it takes none by itself, and goes when that lease does something."""
    lender_memory: bool = False
    """It uses that slice's memory, too."""
    stop_signal: str = DEFAULT_STOP_SIGNAL
    """By which its processes are told to end, without SIG."""
    cuda_ordinals: bool = False
    """They find devices by number in CUDA_VISIBLE_DEVICES."""

    @property
    def holder(self) -> Holder:
        """Whose processes may use it."""
        return Holder(self.lease_id, self.lease_epoch, self.member)

    @property
    def whole_device(self) -> bool:
        """True where nobody else can be on the device, so that there is nobody to protect."""
        return self.share_milli >= WHOLE_SHARE_MILLI


class Intent(enum.StrEnum):
    """What is to become of a reservation."""

    RUN = "run"
    STOP = "stop"
    ENDED = "ended"
    """Nothing is held any more; kept in memory only, until the coordinator has settled it."""


class Ending(enum.StrEnum):
    """How a reservation ended."""

    GONE = "gone"
    FAILED = "failed"


class StopOrder(msgspec.Struct, frozen=True):
    """An order to end a slice's processes, and since when it counts."""

    learned_ms: int
    grace_ms: int
    reason: str = ""


class Reservation(msgspec.Struct, frozen=True):
    """The agent's record of one slice."""

    spec: SliceSpec
    intent: Intent = Intent.RUN
    leader_epoch: int = 0
    """Of the coordinator that last ordered something about it."""
    quarantined: bool = False
    """True while the coordinator's full list does not name it: it stays counted, runs under its limit, takes
    no new processes, and ends only by an order.
    """
    stop: StopOrder | None = None
    ending: Ending | None = None
    reason: str = ""
    """Stable word, for FAILED. Set while it is still to STOP where the agent itself gave it up."""
    detail: str = ""
    energy_mj: int | None = None
    """Of one that is over: what its card had drawn for it."""

    @property
    def slice_id(self) -> str:
        """The slice it records."""
        return self.spec.slice_id

    @property
    def holds(self) -> bool:
        """Whether its part of the device is taken."""
        return self.intent is not Intent.ENDED


class Actual(msgspec.Struct, frozen=True):
    """What is true of a slice now, as far as the agent has seen since it started."""

    limit_set: bool = False
    tier: Tier | None = None
    """What holds it, as read back; None until its limit is set."""
    tier_notes: tuple[str, ...] = ()
    asked_to_end: bool = False
    """The stop signal has been sent to what ran when it was told to stop."""
    live_processes: int | None = 0
    """None: not known at the moment."""
    endpoint: str = ""
    """Where it is served, once its process has answered; empty: not yet, or it is not to be."""
    unserved: str = ""
    """Why it is not served at the moment, for people."""
    energy_mj: int | None = None
    """Its part of what its card has drawn; None: not measured."""


NOTHING_YET = Actual()


class ProcessKey(msgspec.Struct, frozen=True, order=True):
    """One process, for ever: the kernel may give its pid to another one, which starts later."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/pid/stat: clock ticks after boot."""
