"""The retry rule, driven with a made-up clock, without a network; and what rests on it where an answer was lost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.client import Overloaded, PoolError, Refused, TokenNotFound, Unavailable
from aliquot.client._async.access import AsyncAccess
from aliquot.client._async.calling import AsyncCaller
from aliquot.client._methods import LEASES
from aliquot.client._retrying import Attempts, Context, Endpoints, RetryPolicy
from aliquot.common.failures import RpcFailure
from aliquot.v1 import access_pb2
from tests.client.drawn import Drawn

TIMEOUT_S = 20.0

outcomes = st.lists(
    st.one_of(
        st.builds(lambda took: ("UNAVAILABLE", "", None, took), st.floats(0, 1)),
        st.builds(lambda took: ("DEADLINE_EXCEEDED", "", None, took), st.floats(0, 10)),
        st.builds(
            lambda wait, took: ("RESOURCE_EXHAUSTED", "QUEUE_FULL", wait, took), st.floats(0, 5), st.floats(0, 1)
        ),
        st.builds(
            lambda leader, took: ("UNAVAILABLE", "NOT_LEADER", leader, took), st.sampled_from("abcd"), st.floats(0, 1)
        ),
        st.just(("OK", "", None, 0.01)),
        st.just(("NOT_FOUND", "LEASE_NOT_FOUND", None, 0.01)),
        st.just(("DEADLINE_EXCEEDED", "NOT_GRANTED_IN_TIME", None, 0.01)),
    ),
    max_size=60,
)


@dataclass
class Run:
    """What became of one call."""

    now: float = 0.0
    attempts: list[tuple[str, float]] = field(default_factory=list)
    """Where each went, and how long it might take."""
    pauses: list[float] = field(default_factory=list)
    error: PoolError | None = None
    answered: bool = False


def simulate(script: Sequence[Any], seed: int = 0) -> Run:
    """Drive one call; after the script everybody is unavailable."""
    run = Run()
    context = Context(Endpoints(["a", "b"]), RetryPolicy(), lambda: run.now, random.Random(seed))
    attempts = Attempts(context, LEASES["Get"], TIMEOUT_S)
    steps = iter(script)
    while True:
        address, within_s = attempts.next()
        run.attempts.append((address, within_s))
        code, reason, extra, took = next(steps, ("UNAVAILABLE", "", None, 0.01))
        run.now += min(took, within_s)
        if code == "OK":
            run.answered = True
            return run
        failure = RpcFailure(code, "scripted", address, reason=reason)
        if isinstance(extra, float):
            failure.retry_after_s = extra
        elif extra:
            failure.metadata = {"leader": extra}
        try:
            pause_s = attempts.failed(failure)
        except PoolError as error:
            run.error = error
            return run
        if pause_s:
            run.pauses.append(pause_s)
            run.now += pause_s


@given(outcomes, st.integers(0, 1000))
def test_it_always_ends_in_time_with_an_answer_or_an_error(script: list[Any], seed: int) -> None:
    run = simulate(script, seed)
    assert run.answered != (run.error is not None)
    assert run.now <= TIMEOUT_S + 0.01
    assert all(within_s <= RetryPolicy().attempt_timeout_s for _, within_s in run.attempts)


@given(outcomes)
def test_final_answers_end_it_at_once(script: list[Any]) -> None:
    run = simulate(script)
    final = {"OK", "NOT_FOUND"}
    codes = [(entry[0], entry[1]) for entry in script[: len(run.attempts)]]
    for code, reason in codes[:-1]:
        assert code not in final
        assert reason != "NOT_GRANTED_IN_TIME"


@given(outcomes)
def test_never_more_than_three_hops_without_a_pause(script: list[Any]) -> None:
    run = simulate(script)
    assert len(run.attempts) <= 4 * (len(run.pauses) + 1)


@pytest.mark.parametrize("failures", [1, 5, 40])
def test_back_off_grows_to_its_bound_and_has_jitter(failures: int) -> None:
    policy = RetryPolicy(backoff_first_s=0.1, backoff_max_s=2.0)
    waits = {policy.backoff_s(failures, random.Random(seed)) for seed in range(50)}
    whole = min(2.0, 0.1 * 2 ** (failures - 1))
    assert whole / 2 <= min(waits) < max(waits) <= whole


def test_a_failed_address_is_left_and_later_tried_again() -> None:
    run = simulate([("UNAVAILABLE", "", None, 0.0)] * 3 + [("OK", "", None, 0.0)])
    assert [address for address, _ in run.attempts] == ["a", "b", "a", "b"]


def test_a_leader_that_is_gone_is_left_for_a_listed_address() -> None:
    run = simulate([("UNAVAILABLE", "NOT_LEADER", "x", 0.0), ("UNAVAILABLE", "", None, 0.0), ("OK", "", None, 0.0)])
    assert [address for address, _ in run.attempts] == ["a", "x", "a"]


USUAL = RetryPolicy(backoff_first_s=0.1, backoff_max_s=2.0)


@dataclass
class Steps:
    """One call, driven by hand; chance draws the highest."""

    policy: RetryPolicy = USUAL
    now: float = 100.0
    timeout_s: float = 20.0
    attempt_timeout_s: float | None = None
    addresses: tuple[str, ...] = ("a", "b")

    def __post_init__(self) -> None:
        self.endpoints = Endpoints(self.addresses)
        context = Context(self.endpoints, self.policy, lambda: self.now, Drawn(1.0))
        self.attempts = Attempts(context, LEASES["Get"], self.timeout_s, self.attempt_timeout_s)
        self.address, self.allowed_s = self.attempts.next()

    def fail(self, code: str = "UNAVAILABLE", **said: Any) -> float:
        """The attempt fails. How long the call waits then; if it does not, it has begun the next."""
        pause_s = self.attempts.failed(RpcFailure(code, "scripted", self.address, **said))
        if not pause_s:
            self.address, self.allowed_s = self.attempts.next()
        return pause_s

    def fail_and_wait(self, code: str = "UNAVAILABLE", **said: Any) -> float:
        """The attempt fails, the call waits, and tries again. How long it waited."""
        pause_s = self.fail(code, **said)
        assert pause_s > 0
        self.now += pause_s
        self.address, self.allowed_s = self.attempts.next()
        return pause_s


def test_waits_double_and_one_that_was_asked_for_is_kept_if_it_is_longer() -> None:
    steps = Steps()
    assert [steps.fail_and_wait() for _ in range(3)] == [0.1, 0.2, 0.4]
    assert steps.fail_and_wait("RESOURCE_EXHAUSTED", reason="QUEUE_FULL", retry_after_s=2.0) == 2.5
    assert steps.fail_and_wait("RESOURCE_EXHAUSTED", reason="QUEUE_FULL", retry_after_s=0.01) == 1.6
    assert steps.fail_and_wait("RESOURCE_EXHAUSTED", reason="QUEUE_FULL", retry_after_s=0.0) == 2.0


def test_waits_are_at_least_half_and_bounded_after_any_number_of_failures() -> None:
    policy = RetryPolicy(backoff_first_s=0.1, backoff_max_s=2.0)
    assert [policy.backoff_s(failures, Drawn(0.0)) for failures in (1, 2, 100_000)] == [0.05, 0.1, 1.0]
    unbounded = RetryPolicy(backoff_first_s=1.0, backoff_max_s=1e12)
    assert unbounded.backoff_s(33, Drawn(1.0)) == unbounded.backoff_s(100_000, Drawn(1.0)) == 2.0**32


def test_who_answers_that_it_is_busy_is_asked_again_and_who_does_not_answer_is_left() -> None:
    steps = Steps()
    steps.fail_and_wait("RESOURCE_EXHAUSTED", reason="QUEUE_FULL", retry_after_s=0.1)
    assert steps.address == "a"
    steps.fail_and_wait("DEADLINE_EXCEEDED")
    assert steps.address == "b"
    steps.fail_and_wait("UNAVAILABLE", reason="NOT_LEADER")  # and doesn't know who leads
    assert steps.address == "a"


def test_three_named_leaders_are_followed_at_once_and_three_more_after_a_wait() -> None:
    steps = Steps()
    for _ in range(2):
        for leader in "xyz":
            assert steps.fail(reason="NOT_LEADER", metadata={"leader": leader}) == 0.0
            assert steps.address == leader
        steps.fail_and_wait(reason="NOT_LEADER", metadata={"leader": "w"})
        assert steps.address == "a"  # the first listed one


def test_only_one_that_does_not_lead_names_another() -> None:
    steps = Steps()
    steps.fail_and_wait(reason="NOT_LEADER", metadata={"leader": "a"})
    assert steps.address == "b", "one that names itself is left"
    steps.fail_and_wait(reason="SHUTTING_DOWN", metadata={"leader": "x"})
    assert steps.address == "a"


def test_a_try_has_what_is_left_of_the_calls_time_and_no_more_than_its_own() -> None:
    steps = Steps(timeout_s=12.0)
    assert steps.allowed_s == 10.0
    steps.now += 5.0
    steps.fail_and_wait()
    assert steps.allowed_s == pytest.approx(12.0 - 5.1)
    assert Steps(timeout_s=60.0, attempt_timeout_s=30.0).allowed_s == 30.0
    late = Steps(timeout_s=1.0)
    assert late.fail() > 0
    late.now += 5.0  # the machine slept
    assert late.attempts.next()[1] == 0.001


def test_no_wait_reaches_the_deadline() -> None:
    steps = Steps(timeout_s=8.0)
    steps.now = 107.75
    with pytest.raises(Overloaded):
        steps.fail("RESOURCE_EXHAUSTED", reason="OVERLOADED", retry_after_s=0.2)
    steps = Steps(timeout_s=8.0)
    steps.now = 107.5
    assert steps.fail("RESOURCE_EXHAUSTED", reason="OVERLOADED", retry_after_s=0.2) > 0


def test_an_unreachable_pool_is_given_up_once_nobody_has_answered_for_as_long_as_is_allowed() -> None:
    policy = RetryPolicy(backoff_first_s=0.25, backoff_max_s=0.25, unreachable_s=5.0)
    steps = Steps(policy)
    steps.now = 104.5
    steps.fail_and_wait()
    with pytest.raises(Unavailable):
        steps.fail()  # the next try would begin five seconds after the first
    steps = Steps(policy)
    steps.now = 104.5
    steps.fail_and_wait(reason="SHUTTING_DOWN")
    steps.now = 109.0
    steps.fail_and_wait()
    with pytest.raises(Unavailable):
        steps.fail()


def test_without_retries_the_first_failure_is_the_last() -> None:
    with pytest.raises(Unavailable) as raised:
        Steps(RetryPolicy(enabled=False)).fail()
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("code", ["NOT_FOUND", "CANCELLED", "INTERNAL"])
def test_what_would_fail_again_is_not_sent_again(code: str) -> None:
    with pytest.raises(PoolError):
        Steps().fail(code)


def test_addresses_are_used_in_turn_and_one_call_moves_on_for_all() -> None:
    endpoints = Endpoints(["a", "b", "c"])
    used = [endpoints.current]
    for _ in range(3):
        endpoints.advance(endpoints.current)
        used.append(endpoints.current)
    assert used == ["a", "b", "c", "a"]
    endpoints.advance("b")  # another call has moved on already
    assert endpoints.current == "a"
    endpoints.follow("x")
    endpoints.advance("x")
    assert endpoints.current == "a"
    with pytest.raises(ValueError, match="at least one"):
        Endpoints([])


def test_the_first_retry_comes_within_50_ms_waits_stay_below_two_seconds_and_a_try_has_ten() -> None:
    steps = Steps(RetryPolicy(), timeout_s=1000.0)
    assert steps.allowed_s == 10.0
    assert [steps.fail_and_wait() for _ in range(8)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


class Scripted:
    """A transport that answers with these, one after the other, and fails with those of them that are failures."""

    def __init__(self, *outcomes: object) -> None:
        self.left = list(outcomes)

    async def unary(self, *_: object) -> Any:
        outcome = self.left.pop(0)
        if isinstance(outcome, RpcFailure):
            raise outcome
        return outcome


def access_by(transport: Any) -> AsyncAccess:
    quick = RetryPolicy(backoff_first_s=0.0)
    return AsyncAccess(AsyncCaller(transport, Context(Endpoints(["a"]), quick, lambda: 0.0)), TIMEOUT_S)


async def revoked(script: Sequence[str | list[str]], ids: Sequence[str]) -> Any:
    """What `revoke_tokens` makes of answers: tokens that ended, or the word of a failure."""
    reasons = {"NOT_FOUND": "TOKEN_NOT_FOUND"}
    transport = Scripted(
        *(
            RpcFailure(step, "no", "a", reasons.get(step, ""))
            if isinstance(step, str)
            else access_pb2.RevokeTokensResponse(tokens=[access_pb2.Token(token_id=each) for each in step])
            for step in script
        )
    )
    ended = await access_by(transport).revoke_tokens(ids)
    assert not transport.left
    return [token.token_id for token in ended]


async def test_a_revocation_whose_answer_was_lost_is_settled_by_asking_for_each_token() -> None:
    assert await revoked([["x", "y"]], ["x", "y"]) == ["x", "y"]
    assert await revoked(["UNAVAILABLE", "NOT_FOUND", "NOT_FOUND", "NOT_FOUND"], ["x", "y"]) == []
    # One that was never there does not keep the other.
    assert await revoked(["UNAVAILABLE", "NOT_FOUND", "NOT_FOUND", ["y"]], ["typo", "y"]) == ["y"]
    with pytest.raises(TokenNotFound):
        await revoked(["NOT_FOUND"], ["typo"])


@pytest.mark.parametrize("name", ["rotate_authority", "retire_authority"])
async def test_an_exchange_of_the_authority_whose_answer_was_lost_is_not_taken_for_a_refusal(name: str) -> None:
    async def exchanged(*failures: RpcFailure) -> Any:
        transport = Scripted(*failures, access_pb2.Authority(authorities_pem="of both"))
        return (await getattr(access_by(transport), name)()).authorities_pem

    lost = RpcFailure("UNAVAILABLE", "no", "a")
    unchanged = RpcFailure("FAILED_PRECONDITION", "no", "a", "AUTHORITY_UNCHANGED")
    assert await exchanged(lost, unchanged) == "of both"
    with pytest.raises(Refused):
        await exchanged(unchanged)
    with pytest.raises(Refused):
        await exchanged(lost, RpcFailure("FAILED_PRECONDITION", "no", "a", "AUTHORITY_IN_USE"))


async def test_the_wait_before_another_attempt_is_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("aliquot.client._async.calling.sleep", sleep)
    transport: Any = Scripted(RpcFailure("UNAVAILABLE", "no", "a"), access_pb2.Identity(principal="ann"))
    context = Context(Endpoints(["a"]), USUAL, lambda: 0.0, Drawn(1.0))
    assert (await AsyncAccess(AsyncCaller(transport, context), TIMEOUT_S).whoami()).principal == "ann"
    assert waited == [0.1]
