"""Getting a lease and keeping it alive while it waits: the logic of `pool.lease(...)`.

A queued request expires like any lease when it is not kept alive, and a coordinator that restarts forgets which calls
waited. So one long wait is made of short ones: the same Allocate with the same idempotency key, again and again, with
keep-alive in between. If the caller's time is up or it is interrupted, the request is withdrawn.
"""

from __future__ import annotations

from collections.abc import Generator

from aliquot.client import _errors as errors
from aliquot.client._asking import Request
from aliquot.client._flow import Context, Effect, Flow, Forget, Keep, Pause
from aliquot.client._operations import Asked, allocate, release
from aliquot.client._values.leases import Lease, LeaseState, WaitUntil
from aliquot.common.limits import DEFAULT_LEASE_TTL_S

WAIT_STEP_S = 15.0
"""How long one Allocate waits: well within the default TTL, and short enough to notice a coordinator that hangs."""
WITHDRAW_TIMEOUT_S = 5.0
_LOOK_AGAIN_S = 0.25

_PASSING_BY = frozenset({LeaseState.RELEASING, LeaseState.UNREACHABLE})


def obtain(context: Context, asked: Asked, *, until: WaitUntil, wait_s: float | None, timeout_s: float) -> Flow[Lease]:
    """Ask, keep the request alive, and wait for `wait_s` (None: without limit).

    `timeout_s` bounds each exchange with the coordinator. Raises `NotGrantedInTime` after `wait_s`, `LeaseLost` when
    somebody else ends the request meanwhile, and what `allocate` raises; nothing stays allocated then.
    """
    deadline = None if wait_s is None else context.clock() + wait_s
    lease: Lease | None = None
    try:
        while True:
            left_s = WAIT_STEP_S if deadline is None else min(WAIT_STEP_S, deadline - context.clock())
            if lease is not None and left_s <= 0:
                raise _too_late(lease, until, wait_s)
            step_s = min(max(left_s, 0.001), _third_of_ttl_s(asked.request))
            known = lease is not None
            lease = yield from allocate(context, asked, wait_until=until, wait_s=step_s, timeout_s=step_s + timeout_s)
            if lease.state is LeaseState.ENDED:
                raise ended_error(lease)
            if not known and not asked.request.detached:
                yield Keep(lease.lease_id, lease.ttl_s)
            if until.reached_in(lease.state):
                return lease
            if lease.state in _PASSING_BY:
                # The coordinator doesn't wait in these states, so wait here.
                yield Pause(_LOOK_AGAIN_S)
    except errors.PoolError as error:
        if lease is not None and not isinstance(error, errors.LeaseLost):
            yield from _withdraw(context, lease.lease_id)
        raise
    except GeneratorExit:
        raise
    except BaseException:
        # Interrupted in the middle of a call: the coordinator may have granted it all the same.
        yield from _settle(context, asked, lease)
        raise


def _withdraw(context: Context, lease_id: str) -> Generator[Effect, object, None]:
    yield Forget(lease_id)
    try:
        yield from release(context, lease_id, WITHDRAW_TIMEOUT_S, reason="withdrawn by its launcher")
    except errors.PoolError:
        # It is no longer kept alive, so it expires.
        return


def _settle(context: Context, asked: Asked, lease: Lease | None) -> Generator[Effect, object, None]:
    if lease is None:
        try:
            lease = yield from allocate(
                context, asked, wait_until=WaitUntil.QUEUED, wait_s=0.001, timeout_s=WITHDRAW_TIMEOUT_S
            )
        except errors.PoolError:
            return
    yield from _withdraw(context, lease.lease_id)


def _third_of_ttl_s(request: Request) -> float:
    return max(0.1, (request.ttl_s or DEFAULT_LEASE_TTL_S) / 3)


def _too_late(lease: Lease, until: WaitUntil, wait_s: float | None) -> errors.NotGrantedInTime:
    waiting = lease.waiting
    why = f": {waiting.summary}" if waiting and waiting.summary else ""
    return errors.NotGrantedInTime(
        f"{lease.gpu} was {lease.state.lower()}, not {until.lower()}, after {wait_s:g} s{why}",
        hint="wait longer, ask for less, or see `aliquot why` for the smallest change that fits",
        explanation=waiting,
        metadata={"lease_id": lease.lease_id},
    )


def ended_error(lease: Lease) -> errors.LeaseLost:
    """The error that says how and why a lease ended."""
    said = f" ({lease.end_detail})" if lease.end_detail else ""
    how = "has ended" if lease.state is LeaseState.ENDED else "is ending"
    return errors.LeaseLost(
        f"lease {lease.lease_id} {how}: {lease.end_reason or 'no reason was given'}{said}",
        hint=_ENDED_HINTS.get(lease.end_reason, ""),
        lease_id=lease.lease_id,
        end_reason=lease.end_reason,
        reason="LEASE_EXPIRED" if lease.end_reason == "EXPIRED" else "LEASE_ENDED",
    )


_ENDED_HINTS = {
    "EXPIRED": "no keep-alive reached the coordinator within the TTL; ask again, with a longer ttl_s or detached=True",
    "PREEMPTED": "a request with a better claim needed the capacity; ask again to wait for your turn",
    "OVER_LIMIT": "its programs held more memory than it has, again and again; ask for what they need",
    "TIME_LIMIT": "it ran as long as its time_limit_s allowed; ask for a longer one",
    "NODE_LOST": "the node it ran on is gone; ask again to be placed elsewhere",
    "CANCELLED": "an administrator ended it",
    "DRAINED": "its node is being drained; ask again to be placed elsewhere",
}
