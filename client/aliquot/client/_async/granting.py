"""Asking for leases, waiting for them, and giving them back.

A queued request expires like any lease when it is not kept alive, and a coordinator that restarts forgets which calls
waited. So one long wait is made of short ones: the same Allocate with the same idempotency key, again and again, with
keep-alive in between. If the caller's time is up or it is interrupted, the request is withdrawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aliquot.client import _errors as errors
from aliquot.client._asking import Asked
from aliquot.client._async.calling import AsyncCaller
from aliquot.client._async.keeper import AsyncKeeper
from aliquot.client._async.seam import sleep
from aliquot.client._from_proto import lease_of
from aliquot.client._holding import ended_error, third_of_ttl_s, too_late
from aliquot.client._mapping import to_error
from aliquot.client._messages import sendable
from aliquot.client._methods import LEASES, Method
from aliquot.client._values.leases import Lease, LeaseState, WaitUntil
from aliquot.common.failures import failure_in
from aliquot.common.limits import MAX_BATCH_ITEMS, MAX_WAIT_MS
from aliquot.v1 import leases_pb2

ANSWER_SLACK_S = 10.0
"""How much longer than its wait a call may take before it counts as unanswered."""
WAIT_STEP_S = 15.0
"""How long one Allocate waits: well within the default TTL, and short enough to notice a coordinator that hangs."""
WITHDRAW_TIMEOUT_S = 5.0
_LOOK_AGAIN_S = 0.25
_PASSING_BY = frozenset({LeaseState.RELEASING, LeaseState.UNREACHABLE})


class AsyncGranting:
    """Of one pool."""

    def __init__(self, caller: AsyncCaller, keeper: AsyncKeeper) -> None:
        self._caller = caller
        self._keeper = keeper

    async def allocate(self, asked: Asked, *, wait_until: WaitUntil, wait_s: float, timeout_s: float) -> Lease:
        """Ask once. The coordinator waits up to `wait_s` for `wait_until`, and answers with the state reached by then.

        `timeout_s` bounds the whole, retries included.
        """
        wait_ms = min(MAX_WAIT_MS, max(1, round(wait_s * 1000)))
        message = asked.message()
        message.wait_until = leases_pb2.WaitUntil.Value(f"WAIT_UNTIL_{wait_until}")
        message.wait_timeout_ms = wait_ms
        method = LEASES["Allocate" if asked.places is None else "GrantOn"]
        within_s = wait_ms / 1000 + ANSWER_SLACK_S
        answer = await self._caller.call(method, message, timeout_s, attempt_timeout_s=within_s)
        return lease_of(answer.lease)

    async def obtain(self, asked: Asked, *, until: WaitUntil, wait_s: float | None, timeout_s: float) -> Lease:
        """Ask, keep the request alive, and wait for `wait_s` (None: without limit).

        `timeout_s` bounds each exchange with the coordinator. Raises `NotGrantedInTime` after `wait_s`, `LeaseLost`
        when somebody else ends the request meanwhile, and what `allocate` raises; nothing stays allocated then.
        """
        clock = self._caller.context.clock
        deadline = None if wait_s is None else clock() + wait_s
        lease: Lease | None = None
        try:
            while True:
                left_s = WAIT_STEP_S if deadline is None else min(WAIT_STEP_S, deadline - clock())
                if lease is not None and left_s <= 0:
                    raise too_late(lease, until, wait_s)
                step_s = min(max(left_s, 0.001), third_of_ttl_s(asked.request))
                known = lease is not None
                lease = await self.allocate(asked, wait_until=until, wait_s=step_s, timeout_s=step_s + timeout_s)
                if lease.state is LeaseState.ENDED:
                    raise ended_error(lease)
                if not known and not asked.request.detached:
                    self._keeper.add(lease.lease_id, lease.ttl_s)
                if until.reached_in(lease.state):
                    return lease
                if lease.state in _PASSING_BY:
                    # The coordinator doesn't wait in these states, so wait here.
                    await sleep(_LOOK_AGAIN_S)
        except errors.PoolError as error:
            if lease is not None and not isinstance(error, errors.LeaseLost):
                await self._withdraw(lease.lease_id)
            raise
        except GeneratorExit:
            raise  # thrown away, perhaps by a loop that is no more: there is nobody to wait for an answer
        except BaseException:
            # Interrupted in the middle of a call: the coordinator may have granted it all the same.
            await self._settle(asked, lease)
            raise

    async def release(
        self,
        lease_id: str,
        timeout_s: float,
        *,
        gone_within_s: float | None = None,
        reason: str = "",
        exit_code: int | None = None,
    ) -> Lease:
        """End a lease, and (`gone_within_s`) wait so long until its capacity is free, beside `timeout_s`. For one that
        has ended already, the answer is that lease. `exit_code` may be `Popen`'s own.
        """
        wait_ms = 0 if gone_within_s is None else max(1, round(gone_within_s * 1000))
        if exit_code is not None:
            exit_code = exit_code if exit_code >= 0 else 128 - exit_code
        with sendable():
            message = leases_pb2.ReleaseRequest(
                lease_id=lease_id, wait_gone=wait_ms > 0, wait_timeout_ms=wait_ms, reason=reason, exit_code=exit_code
            )
        wait_s = wait_ms / 1000
        within_s = wait_s + ANSWER_SLACK_S
        answer = await self._caller.call(LEASES["Release"], message, timeout_s + wait_s, attempt_timeout_s=within_s)
        return lease_of(answer.lease)

    async def allocate_batch(self, asked: Sequence[Asked], timeout_s: float) -> list[Lease | errors.PoolError]:
        """Ask for many: all of them anywhere, or each at its place. For each, in order, its lease or its error."""
        field = "items" if asked and asked[0].places is None else "grants"
        return await self._batch(LEASES["AllocateBatch"], field, [each.message() for each in asked], timeout_s)

    async def release_batch(self, lease_ids: Sequence[str], timeout_s: float) -> list[Lease | errors.PoolError]:
        """End many. For each, in order, its lease or its error."""
        return await self._batch(LEASES["ReleaseBatch"], "lease_ids", lease_ids, timeout_s)

    async def _batch(
        self, method: Method[Any, Any], field: str, items: Sequence[object], timeout_s: float
    ) -> list[Lease | errors.PoolError]:
        """As many messages as their bound wants."""
        endpoints = self._caller.context.endpoints
        results: list[Lease | errors.PoolError] = []
        for start in range(0, len(items), MAX_BATCH_ITEMS):
            some = items[start : start + MAX_BATCH_ITEMS]
            answer = await self._caller.send(method, timeout_s, **{field: some})
            for result in answer.results:
                if result.WhichOneof("result") == "lease":
                    results.append(lease_of(result.lease))
                else:
                    failure = failure_in(result.error, endpoints.current)
                    results.append(to_error(failure, method, endpoints.addresses, timeout_s))
        return results

    async def _withdraw(self, lease_id: str) -> None:
        self._keeper.drop(lease_id)
        try:
            await self.release(lease_id, WITHDRAW_TIMEOUT_S, reason="withdrawn by its launcher")
        except errors.PoolError:
            # It is no longer kept alive, so it expires.
            return

    async def _settle(self, asked: Asked, lease: Lease | None) -> None:
        if lease is None:
            try:
                lease = await self.allocate(
                    asked, wait_until=WaitUntil.QUEUED, wait_s=0.001, timeout_s=WITHDRAW_TIMEOUT_S
                )
            except errors.PoolError:
                return
        await self._withdraw(lease.lease_id)
