"""The leases to keep alive: what to send when, and what an answer means. Pure: threads and tasks do the I/O.

One stream serves a whole pool, and one message names every lease, because messages are what costs. An answer has a
deadline: a coordinator whose machine is gone leaves a stream that looks alive.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from aliquot.client._from_proto import lease_of
from aliquot.client._retrying import RetryPolicy
from aliquot.client._values.leases import Lease
from aliquot.common.limits import DEFAULT_LEASE_TTL_S, MAX_KEEPALIVE_IDS
from aliquot.v1 import leases_pb2

INTERVAL_MAX_S = 15.0
"""Also the longest that a notice of preemption may be delayed."""
INTERVAL_MIN_S = 0.1
SILENCE_MIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Loss:
    """The coordinator no longer holds this lease."""

    lease_id: str
    reason: str
    """LEASE_EXPIRED, LEASE_ENDED or LEASE_NOT_FOUND."""


@dataclass(frozen=True, slots=True)
class Notice:
    """This lease is being taken back; what runs under it is stopped at `deadline_ms`."""

    lease_id: str
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Resized:
    """This elastic lease has gained slices, or must give some back."""

    lease_id: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class Warned:
    """This lease is idle, and that will have consequences."""

    lease_id: str
    text: str


News = Loss | Notice | Resized | Warned


class KeepBook:
    """The leases, and when the next message is due. Not thread-safe."""

    def __init__(self, policy: RetryPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self._ttls: dict[str, float] = {}
        self._due: float | None = None
        self._interval_s = INTERVAL_MAX_S
        self._failures = 0
        self._noticed: dict[str, int] = {}
        self._warned: dict[str, tuple[int, int]] = {}
        self._shapes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ttls)

    def add(self, lease_id: str, ttl_s: float, now: float) -> None:
        """Keep this lease alive from now on."""
        self._ttls[lease_id] = ttl_s or DEFAULT_LEASE_TTL_S
        first = now + _interval_of(self._ttls[lease_id]) * self._jitter()
        self._due = first if self._due is None else min(self._due, first)

    def drop(self, lease_id: str) -> None:
        """Stop keeping it alive."""
        self._ttls.pop(lease_id, None)
        self._noticed.pop(lease_id, None)
        self._warned.pop(lease_id, None)
        self._shapes.pop(lease_id, None)
        if not self._ttls:
            self._due = None

    def wait_s(self, now: float) -> float | None:
        """How long until a message is due; None: until a lease is added."""
        return None if self._due is None else max(0.0, self._due - now)

    def take(self, now: float) -> list[leases_pb2.KeepAliveRequest]:
        """The messages that are due now, each naming at most 10,000 leases."""
        if self._due is None or now < self._due:
            return []
        self._interval_s = min(self._interval_s, *map(_interval_of, self._ttls.values()))
        self._due = now + self._interval_s * self._jitter()
        ids = list(self._ttls)
        return [
            leases_pb2.KeepAliveRequest(lease_ids=ids[start : start + MAX_KEEPALIVE_IDS])
            for start in range(0, len(ids), MAX_KEEPALIVE_IDS)
        ]

    def answered(self, answer: leases_pb2.KeepAliveResponse, now: float) -> list[News]:
        """The news in one answer: each loss, each new deadline and each new shape once."""
        self._failures = 0
        if answer.renew_within_ms:
            self._interval_s = min(INTERVAL_MAX_S, max(INTERVAL_MIN_S, answer.renew_within_ms / 4000))
            if self._due is not None:
                self._due = min(self._due, now + self._interval_s)
        news: list[News] = []
        for lease_id, reason in answer.lost.items():
            if lease_id in self._ttls:
                self.drop(lease_id)
                news.append(Loss(lease_id, reason))
        for lease_id, deadline_ms in answer.preempting.items():
            if lease_id in self._ttls and self._noticed.get(lease_id) != deadline_ms:
                self._noticed[lease_id] = deadline_ms
                news.append(Notice(lease_id, deadline_ms))
        for warning in answer.warned:
            if warning.lease_id in self._ttls and self._warned.get(warning.lease_id) != (
                warning.number,
                warning.act_ms,
            ):
                self._warned[warning.lease_id] = (warning.number, warning.act_ms)
                news.append(Warned(warning.lease_id, warning.text))
        for message in answer.resized:
            if message.lease_id in self._ttls and self._shapes.get(message.lease_id) != message.shape:
                self._shapes[message.lease_id] = message.shape
                news.append(Resized(message.lease_id, lease_of(message)))
        return news

    def broke(self, now: float, asked_s: float | None = None) -> float:
        """The stream ended. Returns the seconds to wait before the next one, whose first message is due at once.

        `asked_s`: the wait that the other side asked for, kept as far as no lease expires by it.
        """
        self._failures += 1
        if self._ttls:
            self._due = now
        wait_s = self._policy.backoff_s(self._failures, self._rng)
        if asked_s is None:
            return wait_s
        # Jitter upwards: all clients were told the same time.
        asked_s *= 1.0 + 0.25 * self._rng.random()
        return max(wait_s, min(asked_s, min(self._ttls.values(), default=3 * asked_s) / 3))

    def wait_for_answer_s(self) -> float:
        """How long an answer may take before the stream counts as dead."""
        return max(SILENCE_MIN_S, 2 * self._interval_s)

    def _jitter(self) -> float:
        return 0.85 + 0.15 * self._rng.random()


def _interval_of(ttl_s: float) -> float:
    # A quarter: two messages may be lost and a third may be late before the lease expires.
    return min(INTERVAL_MAX_S, max(INTERVAL_MIN_S, ttl_s / 4))
