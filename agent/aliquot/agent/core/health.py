"""Whether a device may take new leases: unhealthy at once, healthy again only after a while; and why.

A device turns unhealthy on the first bad sign, and healthy again when every sign has been good for `CALM_SAMPLES`
samples in a row and `CALM_MS` have passed since the last bad one. Signs, in the order asked: the agent's own calls (a
hung or lost device), the driver's recovery action, row remapping, XIDs, what shows over time. The recovery action
judges; an XID only makes us ask for it. Where the driver has none, the XID judges, and silence never clears it: a
repair does, or whoever repairs the device restarts the agent. Pure: samples and times come in. Times are milliseconds
of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from aliquot.agent.core.samples import HealthSample, RecoveryAction
from aliquot.agent.core.signals import (
    ENGINE,
    LINKS,
    NOT_ANSWERING,
    REMAP_FAILED,
    REMAP_PENDING,
    UNCONTAINED,
    Signal,
    asked_by,
    signal_of,
    signal_of_recovery,
)
from aliquot.agent.core.trends import Trends, follow, settled

CALM_SAMPLES = 3
CALM_MS = 10_000
"""Unless told otherwise."""
PROGRAM_SUSPECTED = 109
"""An XID of the engines."""
SILENCE_MS = 45_000
"""A device that has not answered for so long is a case for a repair; before, it may be the driver taking its time."""


@dataclass(frozen=True, slots=True)
class Health:
    """A device's standing. Start with `Health()`: innocent until a sign says otherwise."""

    healthy: bool = True
    reason: str = ""
    bad_ms: int = 0
    """When the last bad sign was seen."""
    good_samples: int = 0
    """In a row, since then."""
    xid: int | None = None
    """The last one that took it out of service, until good recovery actions for a calm while clear it."""
    signal: Signal | None = None
    """Why it is unhealthy, as the table has it; None: for a reason that is the node's, or may pass at once."""
    silent_ms: int | None = None
    """Since when it has not answered."""
    trends: Trends = field(default_factory=Trends, compare=False)


def on_failure(
    health: Health,
    reason: str,
    now_ms: int,
    signal: Signal | None = None,
    *,
    silent: bool = True,
    ignored: Collection[str] = (),
) -> Health:
    """A call to the device failed, hung, or answered that it is lost (`signal`). Not `silent`: the fault is
    the node's, not the device's. A cause that is `ignored` takes no leases while it lasts, and is no case for a repair.
    """
    silent_ms = now_ms if silent and health.silent_ms is None else health.silent_ms
    if signal is None and silent and silent_ms is not None and now_ms - silent_ms >= SILENCE_MS:
        signal = NOT_ANSWERING
    signal = None if signal is not None and signal.cause in ignored else signal
    return replace(
        health,
        healthy=False,
        reason=reason,
        bad_ms=now_ms,
        good_samples=0,
        signal=signal or health.signal,
        silent_ms=silent_ms,
    )


def on_blindness(health: Health, reason: str, now_ms: int) -> Health:
    """No device of the node answers: that is not this one's fault, and what it was silent for does not count."""
    return replace(
        health,
        healthy=False,
        reason=reason,
        bad_ms=now_ms,
        good_samples=0,
        signal=None if health.signal is NOT_ANSWERING else health.signal,
        silent_ms=None,
    )


def on_xid(
    health: Health, xid: int, recovery: RecoveryAction | None, now_ms: int, ignored: Collection[str] = ()
) -> Health:
    """The driver reported an XID. `recovery` is the recovery action read right after it, where the driver has one."""
    signal = signal_of(xid)
    if signal is None or not signal.takes_out:
        return health
    if recovery is None:
        # The catalogue asks for a reset; experience says it is usually the program's fault.
        believed = xid != PROGRAM_SUSPECTED
    else:
        # The driver may have recovered from these by itself: then its recovery action asks for nothing.
        believed = recovery.concerns_device or signal not in (ENGINE, LINKS)
    asked = signal_of_recovery(recovery) if recovery is not None else None
    signal = asked or signal
    if not believed or signal.cause in ignored:
        return health
    return replace(
        health,
        healthy=False,
        reason=f"XID {xid}: {asked_by(xid)}",
        bad_ms=now_ms,
        good_samples=0,
        xid=xid,
        signal=signal,
    )


def on_sample(
    health: Health, sample: HealthSample, now_ms: int, calm_ms: int = CALM_MS, ignored: Collection[str] = ()
) -> Health:
    """The device was asked how it is, and answered."""
    trends, trend, story = follow(health.trends, sample, now_ms, ignored)
    health = replace(health, trends=trends, silent_ms=None)
    signal, reason = _complaint(sample, ignored)
    if signal is None:
        signal, reason = trend, story
    if signal is not None:
        return replace(health, healthy=False, reason=reason, bad_ms=now_ms, good_samples=0, signal=signal)
    if health.healthy:
        return health
    if health.xid is not None and sample.recovery_action is None:
        # Nothing on this driver can say that it is over.
        reason = f"XID {health.xid}: {asked_by(health.xid)}, then restart the agent"
        return replace(health, reason=reason, good_samples=0)
    good = health.good_samples + 1
    if good >= CALM_SAMPLES and now_ms - health.bad_ms >= calm_ms:
        return Health(trends=trends)
    return replace(health, good_samples=good)


def on_repair(health: Health) -> Health:
    """The device was repaired, or tested and found well: what was before says nothing. The next sample judges."""
    return Health(trends=settled(health.trends))


def complains(sample: HealthSample) -> bool:
    """Whether a card says by itself that something is wrong with it."""
    return _complaint(sample)[0] is not None


def _complaint(sample: HealthSample, ignored: Collection[str] = ()) -> tuple[Signal | None, str]:
    return next(((signal, why) for signal, why in _complaints(sample) if signal.cause not in ignored), (None, ""))


def _complaints(sample: HealthSample) -> Iterator[tuple[Signal, str]]:
    """What a card says of itself, the worst first."""
    action = sample.recovery_action
    asked = signal_of_recovery(action) if action is not None and action.concerns_device else None
    if action is not None and asked is not None:
        yield asked, f"the driver asks for: {action.name.lower().replace('_', ' ')}"
    if sample.remap_failed:
        yield REMAP_FAILED, "a memory row could not be remapped: the device needs service"
    if sample.remap_pending and action is None:
        # Where the driver has a recovery action, that says whether a pending remap matters.
        yield REMAP_PENDING, "memory rows wait to be remapped: reset the device"
    if sample.uncorrected_errors and action is None:
        many = sample.uncorrected_errors
        yield UNCONTAINED, f"{many} uncorrectable memory errors since the driver was loaded: reset the device"
