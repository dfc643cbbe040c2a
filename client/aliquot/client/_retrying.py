"""The retry rule, without I/O, for both twins: where a call goes next, how long it waits before, and when it gives up.

Every call of the contract is safe to repeat (mutations by nature or by idempotency key), so a call that fails for a
temporary reason is sent again, to the next address or the named leader, with jittered back-off, until the caller's
deadline. A token that is refused is sent again only if another one has taken its place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aliquot.client._errors import PoolError
from aliquot.client._mapping import to_error
from aliquot.client._methods import Method
from aliquot.client._token import NO_TOKEN, Token
from aliquot.common.failures import RpcFailure

UNAUTHENTICATED = "UNAUTHENTICATED"
LEADER_HOPS_MAX = 3
"""Leader hints followed at once. After one more, the coordinators don't agree yet: wait as after any failure."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How failed calls are repeated. Waits are drawn evenly from [half, whole] of a back-off that doubles."""

    backoff_first_s: float = 0.05
    backoff_max_s: float = 2.0
    attempt_timeout_s: float = 10.0
    """After this long without an answer a call is sent again, to the next address if there is one."""
    unreachable_s: float | None = None
    """Give up when no coordinator has answered at all for this long; None: at the caller's deadline."""
    enabled: bool = True
    tell: Callable[[PoolError, float], None] | None = None
    """Called with an error and the seconds that are waited before the next attempt, for whoever sits in front of it."""

    def backoff_s(self, failures: int, rng: random.Random) -> float:
        """The wait after this many failures in a row."""
        whole = min(self.backoff_max_s, self.backoff_first_s * 2.0 ** min(failures - 1, 32))
        return whole * (0.5 + 0.5 * rng.random())


class Endpoints:
    """The coordinators' addresses and which of them to talk to now; shared by all calls of a pool."""

    def __init__(self, addresses: Sequence[str]) -> None:
        if not addresses:
            raise ValueError("at least one address is needed")
        self.addresses = tuple(addresses)
        self.current = self.addresses[0]

    def follow(self, leader: str) -> None:
        """A coordinator named its leader, which need not be on the list."""
        self.current = leader

    def advance(self, failed: str) -> None:
        """`failed` did not answer: use the next address, unless another call has moved on already."""
        if self.current == failed:
            known = self.addresses.index(failed) if failed in self.addresses else -1
            self.current = self.addresses[(known + 1) % len(self.addresses)]


@dataclass(frozen=True, slots=True)
class Context:
    """What all calls of a pool share."""

    endpoints: Endpoints
    policy: RetryPolicy
    clock: Callable[[], float]
    """Seconds, monotonic."""
    rng: random.Random = field(default_factory=random.SystemRandom)
    token: Token = NO_TOKEN

    def follow(self, leader: str) -> None:
        """Talk to the coordinator that another named as its leader. Raises `SecurityError` if the token can't go."""
        self.token.check(leader)
        self.endpoints.follow(leader)

    def error_of(self, failure: RpcFailure, method: Method[Any, Any], timeout_s: float) -> PoolError:
        """The typed error of a failed call."""
        return self.token.advise(to_error(failure, method, self.endpoints.addresses, timeout_s))


class Attempts:
    """The attempts of one call.

    Whoever makes them asks for the `next` one and, where it fails, says so and waits.
    """

    def __init__(
        self, context: Context, method: Method[Any, Any], timeout_s: float, attempt_timeout_s: float | None = None
    ) -> None:
        """`attempt_timeout_s` is how long one attempt may take, for calls that wait by design."""
        self._context = context
        self._method = method
        self._timeout_s = timeout_s
        self._attempt_timeout_s = context.policy.attempt_timeout_s if attempt_timeout_s is None else attempt_timeout_s
        self._answered_s = context.clock()
        self._deadline_s = self._answered_s + timeout_s
        self._address, self._generation = "", 0
        self._failures = self._hops = 0
        self._renewals_left = 1
        self._unknown = False

    def next(self) -> tuple[str, float]:
        """Where the next one goes, and how long it may take (seconds)."""
        self._address, self._generation = self._context.endpoints.current, self._context.token.generation
        remaining_s = max(0.001, self._deadline_s - self._context.clock())
        return self._address, min(remaining_s, self._attempt_timeout_s)

    def failed(self, failure: RpcFailure) -> float:
        """The last one failed so. Returns the seconds to wait before the next; 0: none.

        Raises the typed error where there is to be no other. Call it where `failure` is handled.
        """
        context, policy = self._context, self._context.policy
        if failure.code == UNAUTHENTICATED and self._renewals_left and context.token.renewed(self._generation):
            self._renewals_left -= 1
            return 0.0
        error = context.error_of(failure, self._method, self._timeout_s)
        error.after_unknown = self._unknown
        if not policy.enabled or not is_passing(failure):
            raise error from None
        leader = failure.metadata.get("leader", "")
        if failure.reason == "NOT_LEADER" and leader and leader != self._address and self._hops < LEADER_HOPS_MAX:
            self._hops += 1
            context.follow(leader)
            return 0.0
        if failure.code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
            context.endpoints.advance(self._address)
            self._unknown = True
        self._failures += 1
        self._hops = 0
        wait_s = pause_s(context, self._failures, failure)
        if failure.reason:
            # A coordinator answered: the time without any answer starts again.
            self._answered_s = context.clock()
        again_s = context.clock() + wait_s
        if policy.unreachable_s is not None and again_s >= self._answered_s + policy.unreachable_s:
            raise error from None
        if again_s >= self._deadline_s:
            raise error from None
        if policy.tell is not None:
            policy.tell(error, wait_s)
        return wait_s


def pause_s(context: Context, failures: int, failure: RpcFailure | None) -> float:
    """The wait after this many failures in a row: the back-off, or what the last one asked for if that is longer."""
    wait_s = context.policy.backoff_s(failures, context.rng)
    if failure is not None and failure.retry_after_s is not None:
        # Jitter upwards: all clients were told the same time.
        wait_s = max(wait_s, failure.retry_after_s * (1.0 + 0.25 * context.rng.random()))
    return wait_s


def is_passing(failure: RpcFailure) -> bool:
    """Whether the same call may succeed later."""
    if failure.reason == "NOT_GRANTED_IN_TIME":
        return False
    return failure.code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"} or failure.retry_after_s is not None
