"""How long leases of each tenant were over their limits within the last minute, on all nodes.

Each agent tells what it saw, and is told what all others did, so that a tenant gains nothing by going from node to
node, and nothing is forgotten with an agent that starts again. Nothing of this is journalled: after a minute it is
over, and agents say it again to a coordinator that is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from aliquot.common.clock import Clock
from aliquot.common.spans import SPANS_MAX, Spans, joined, recent
from aliquot.coordinator.agents.session import Session
from aliquot.coordinator.reading.view import View
from aliquot.v1 import agent_pb2

WINDOW_MS = 60_000
TENANTS_MAX = 64
"""Of one message."""
TOLD_EVERY_MS = 1_000
"""Other nodes hear of a tenant at most so often: their agents count on from what they heard."""
LEASES_MAX = 10_000
"""Of a tenant, among which nodes to tell are looked for."""


class _Seen(NamedTuple):
    """On the monotonic clock of this process."""

    spans: Spans
    killed_ms: int | None


class Overtime:
    """See the module's docstring."""

    def __init__(self, clock: Clock, view: View, session_of: Callable[[str], Session | None]) -> None:
        """`session_of` gives the session of a node's agent."""
        self._clock = clock
        self._view = view
        self._session_of = session_of
        self._seen: dict[str, dict[int, _Seen]] = {}
        """By tenant and session."""
        self._told_ms: dict[str, int] = {}

    def heard(self, session: Session, entries: Iterable[agent_pb2.TenantOvertime]) -> None:
        """What an agent says of tenants that have leases on its node; of others it can know nothing."""
        now_ms = self._clock.monotonic_ms()
        leases = map(self._view.leases.get, set(self._view.slices_on(session.node_id).values()))
        here = {lease.request.tenant for lease in leases if lease is not None}
        self._forget(now_ms)
        for entry in islice(entries, TENANTS_MAX):
            if entry.tenant in here:
                self._seen.setdefault(entry.tenant, {})[session.epoch] = _read(entry, now_ms)
                self._pass_on(entry.tenant, session, now_ms)

    def elsewhere(self, tenants: Iterable[str], session_epoch: int) -> list[agent_pb2.TenantOvertime]:
        """What others than this session said of tenants."""
        if not self._seen:
            return []
        now_ms = self._clock.monotonic_ms()
        found = ((tenant, self._others(tenant, session_epoch)) for tenant in tenants if tenant in self._seen)
        return [_message(tenant, seen, now_ms) for tenant, seen in found if seen]

    def _others(self, tenant: str, session_epoch: int) -> list[_Seen]:
        return [seen for epoch, seen in self._seen[tenant].items() if epoch != session_epoch]

    def _forget(self, now_ms: int) -> None:
        """What nothing follows from any more."""
        since_ms = now_ms - WINDOW_MS
        for tenant, by_session in list(self._seen.items()):
            kept = {epoch: seen for epoch, seen in by_session.items() if _latest_ms(seen) > since_ms}
            self._seen[tenant] = kept
            if not kept:
                del self._seen[tenant]
                self._told_ms.pop(tenant, None)

    def _pass_on(self, tenant: str, by: Session, now_ms: int) -> None:
        """Tell the agents of all nodes where the tenant has leases."""
        if now_ms - self._told_ms.get(tenant, -TOLD_EVERY_MS) < TOLD_EVERY_MS:
            return
        self._told_ms[tenant] = now_ms
        leases = islice(self._view.leases_after(0, tenant=tenant, live_only=True), LEASES_MAX)
        # In one order in every process, so that a simulation can be repeated.
        for node_id in sorted({piece.plan.node_id for lease in leases for piece in lease.slices}):
            session = self._session_of(node_id)
            if session is not None and session is not by:
                session.tell_overtime(tenant)


def _read(entry: agent_pb2.TenantOvertime, now_ms: int) -> _Seen:
    spans = ((now_ms - span.began_ago_ms, now_ms - span.ended_ago_ms) for span in entry.spans[-SPANS_MAX:])
    killed_ms = now_ms - entry.killed_ago_ms if entry.HasField("killed_ago_ms") else None
    return _Seen(recent(joined(span for span in spans if span[0] <= span[1]), now_ms - WINDOW_MS), killed_ms)


def _message(tenant: str, seen: list[_Seen], now_ms: int) -> agent_pb2.TenantOvertime:
    message = agent_pb2.TenantOvertime(tenant=tenant)
    for begin_ms, end_ms in recent(joined(span for each in seen for span in each.spans), now_ms - WINDOW_MS)[
        -SPANS_MAX:
    ]:
        message.spans.add(began_ago_ms=now_ms - begin_ms, ended_ago_ms=now_ms - end_ms)
    killed = [each.killed_ms for each in seen if each.killed_ms is not None]
    if killed:
        message.killed_ago_ms = now_ms - max(killed)
    return message


def _latest_ms(seen: _Seen) -> int:
    return max([seen.killed_ms or 0, *(end_ms for _, end_ms in seen.spans)])
