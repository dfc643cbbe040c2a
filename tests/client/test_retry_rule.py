"""The retry rule as a pure function: driven with a made-up clock, without a network."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.client import PoolError
from aliquot.client._flow import Attempt, Context, Endpoints, Pause, RetryPolicy, call
from aliquot.client._methods import GET
from aliquot.client._transport import RpcFailure
from aliquot.v1 import leases_pb2, types_pb2

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
    attempts: list[Attempt] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    error: PoolError | None = None
    answer: Any = None


def simulate(script: Sequence[Any], seed: int = 0) -> Run:
    """Drive one call; after the script everybody is unavailable."""
    run = Run()
    context = Context(Endpoints(["a", "b"]), RetryPolicy(), lambda: run.now, random.Random(seed))
    flow = call(context, GET, leases_pb2.GetRequest(lease_id="l-1"), TIMEOUT_S)
    steps = iter(script)
    try:
        effect = next(flow)
        while True:
            if isinstance(effect, Pause):
                run.pauses.append(effect.seconds)
                run.now += effect.seconds
                effect = flow.send(None)
                continue
            assert isinstance(effect, Attempt)
            run.attempts.append(effect)
            code, reason, extra, took = next(steps, ("UNAVAILABLE", "", None, 0.01))
            run.now += min(took, effect.timeout_s)
            if code == "OK":
                effect = flow.send(types_pb2.Lease(lease_id="l-1"))
                continue
            failure = RpcFailure(code, "scripted", effect.address, reason=reason)
            if isinstance(extra, float):
                failure.retry_after_s = extra
            elif extra:
                failure.metadata = {"leader": extra}
            effect = flow.throw(failure)
    except StopIteration as stop:
        run.answer = stop.value
    except PoolError as error:
        run.error = error
    return run


@given(outcomes, st.integers(0, 1000))
def test_it_always_ends_in_time_with_an_answer_or_an_error(script: list[Any], seed: int) -> None:
    run = simulate(script, seed)
    assert (run.answer is None) != (run.error is None)
    assert run.now <= TIMEOUT_S + 0.01
    assert all(attempt.timeout_s <= RetryPolicy().attempt_timeout_s for attempt in run.attempts)


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
    assert [attempt.address for attempt in run.attempts] == ["a", "b", "a", "b"]


def test_a_leader_that_is_gone_is_left_for_a_listed_address() -> None:
    run = simulate([("UNAVAILABLE", "NOT_LEADER", "x", 0.0), ("UNAVAILABLE", "", None, 0.0), ("OK", "", None, 0.0)])
    assert [attempt.address for attempt in run.attempts] == ["a", "x", "a"]
