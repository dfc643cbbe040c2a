"""Calls as generators without I/O: what to send, when to wait and when to give up, for both twins.

A flow yields effects (send this, wait this long) and is sent their outcome; a runner carries them out, with threads or
asyncio. The retry rule is here: every call of the contract is safe to repeat (mutations by nature or by idempotency
key), so a call that fails for a temporary reason is sent again, to the next address or the named leader, with jittered
back-off, until the caller's deadline. A token that is refused is sent again only if another one has taken its place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.message import Message

from aliquot.client._errors import InvalidRequest, PoolError
from aliquot.client._mapping import to_error
from aliquot.client._methods import Answer, Method, Request
from aliquot.client._token import NO_TOKEN, Token
from aliquot.client._transport import Clock, RpcFailure
from aliquot.common.errors import AliquotError

T = TypeVar("T")

UNAUTHENTICATED = "UNAUTHENTICATED"
LEADER_HOPS_MAX = 3
"""Leader hints followed at once. After one more, the coordinators don't agree yet: wait as after any failure."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Send one message to one address; the outcome is the answer, or a thrown `RpcFailure`."""

    method: Method[Any, Any]
    request: Message
    address: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep this lease alive from now on."""

    lease_id: str
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Stop keeping this lease alive."""

    lease_id: str


Effect = Attempt | Pause | Keep | Forget
Flow = Generator[Effect, Any, T]


def begin(flow: Flow[T]) -> Effect:
    """The first effect. Raises `InvalidRequest` for values that no message can carry, and StopIteration at the end."""
    try:
        return next(flow)
    except AliquotError:
        raise
    except ValueError as error:  # protobuf's word for numbers out of range, and for text that is none
        hint = "write text in UTF-8" if isinstance(error, UnicodeError) else "numbers are of 64 bits at most"
        raise InvalidRequest(f"a value can't be sent: {error}", hint=hint) from error


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
    """What every flow of a pool shares."""

    endpoints: Endpoints
    policy: RetryPolicy
    clock: Clock
    rng: random.Random = field(default_factory=random.SystemRandom)
    token: Token = NO_TOKEN

    def follow(self, leader: str) -> None:
        """Talk to the coordinator that another named as its leader. Raises `SecurityError` if the token can't go."""
        self.token.check(leader)
        self.endpoints.follow(leader)

    def error_of(self, failure: RpcFailure, method: Method[Any, Any], timeout_s: float) -> PoolError:
        """The typed error of a failed call."""
        return self.token.advise(to_error(failure, method, self.endpoints.addresses, timeout_s))


def call(
    context: Context,
    method: Method[Request, Answer],
    request: Request,
    timeout_s: float,
    *,
    attempt_timeout_s: float | None = None,
) -> Flow[Answer]:
    """Send until answered, refused, or out of time.

    `attempt_timeout_s` is how long one attempt may take, for calls that wait by design.
    Raises the typed error of the last attempt.
    """
    started = context.clock()
    deadline = started + timeout_s
    per_attempt = context.policy.attempt_timeout_s if attempt_timeout_s is None else attempt_timeout_s
    failures = hops = 0
    renewals_left = 1
    unknown = False
    while True:
        address, generation = context.endpoints.current, context.token.generation
        remaining = max(0.001, deadline - context.clock())
        try:
            answer: Answer = yield Attempt(method, request, address, min(remaining, per_attempt))
            return answer
        except RpcFailure as failure:
            if failure.code == UNAUTHENTICATED and renewals_left and context.token.renewed(generation):
                renewals_left -= 1
                continue
            error = context.error_of(failure, method, timeout_s)
            error.after_unknown = unknown
            if not context.policy.enabled or not is_passing(failure):
                raise error from None
            leader = failure.metadata.get("leader", "")
            if failure.reason == "NOT_LEADER" and leader and leader != address and hops < LEADER_HOPS_MAX:
                hops += 1
                context.follow(leader)
                continue
            if failure.code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
                context.endpoints.advance(address)
                unknown = True
            failures += 1
            hops = 0
            wait_s = pause_s(context, failures, failure)
            if failure.reason:
                # A coordinator answered: the time without any answer starts again.
                started = context.clock()
            patience_s = context.policy.unreachable_s
            if patience_s is not None and context.clock() + wait_s >= started + patience_s:
                raise error from None
            if context.clock() + wait_s >= deadline:
                raise error from None
            if context.policy.tell is not None:
                context.policy.tell(error, wait_s)
        yield Pause(wait_s)


def send(context: Context, method: Method[Request, Answer], timeout_s: float, **fields: object) -> Flow[Answer]:
    """`call` with a message of these fields. Raises `InvalidRequest` for values that they can't carry."""
    return (yield from call(context, method, method.request(**fields), timeout_s))


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
