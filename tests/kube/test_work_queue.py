"""The queue of control loops: nothing is lost, nothing is there twice, who fails waits longer, but not for ever."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import floats, sampled_from

from aliquot.kube.core.work_queue import WorkQueue

AGAIN_S, MAX_S = 1.0, 10.0
KEYS = sampled_from(["a", "b", "c", "d"])


class QueueMachine(RuleBasedStateMachine):
    """Beside a model that says of each key when it must be taken at the latest."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WorkQueue(AGAIN_S, MAX_S)
        self.now_s = 100.0
        self.due: dict[str, float] = {}
        """When a key is due."""
        self.taken: str | None = None
        self.failures: dict[str, int] = {}

    @rule(key=KEYS)
    def change(self, key: str) -> None:
        self.queue.add(key)
        self.due[key] = self.now_s

    @rule(by_s=floats(0, 30))
    def wait(self, by_s: float) -> None:
        self.now_s += by_s

    @precondition(lambda self: self.taken is None)
    @rule()
    def take(self) -> None:
        key = self.queue.take(self.now_s)
        ready = {key for key, at in self.due.items() if at <= self.now_s}
        if key is None:
            assert not ready
            return
        assert key in ready
        del self.due[key]
        self.taken = key

    @precondition(lambda self: self.taken is not None)
    @rule()
    def succeed(self) -> None:
        assert self.taken is not None
        self.queue.done(self.taken)
        self.failures.pop(self.taken, None)
        self.taken = None

    @precondition(lambda self: self.taken is not None)
    @rule()
    def fail(self) -> None:
        key = self.taken
        assert key is not None
        self.queue.again(key, self.now_s)
        pause_s = min(MAX_S, AGAIN_S * 2 ** self.failures.get(key, 0))
        self.failures[key] = self.failures.get(key, 0) + 1
        self.due.setdefault(key, self.now_s + pause_s)
        self.taken = None

    @invariant()
    def it_says_when_to_come_back(self) -> None:
        soonest = min(self.due.values(), default=math.inf)
        assert self.queue.next_s() <= max(soonest, self.now_s) or soonest == math.inf
        if not self.due:
            assert self.queue.next_s() == math.inf


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_what_failed_is_tried_again_after_longer_and_longer_pauses() -> None:
    queue, now_s, pauses = WorkQueue(AGAIN_S, MAX_S), 0.0, []
    queue.add("a")
    for _ in range(6):
        assert queue.take(now_s) == "a"
        assert queue.take(now_s) is None
        queue.again("a", now_s)
        pauses.append(queue.next_s() - now_s)
        now_s = queue.next_s()
    assert pauses == [1, 2, 4, 8, 10, 10]
    assert queue.take(now_s) == "a"
    queue.done("a")
    queue.add("a")
    assert queue.take(now_s) == "a"
    queue.again("a", now_s)
    assert queue.next_s() == now_s + 1
