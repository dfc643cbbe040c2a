# Written by tools/unasync.py from client/aliquot/client/_async/runner.py. Change that, then `make sync`.
"""Runs flows: carries out their effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from aliquot.client._flow import Attempt, Effect, Flow, Forget, Keep, Pause, begin
from aliquot.client._sync.ports import Transport
from aliquot.client._sync.seam import sleep

T = TypeVar("T")


class Runner:
    """Runs flows with one transport.

    An interruption of an effect (Ctrl-C, a cancelled task) is thrown into the waiting flow, which can clean up with
    effects of its own before the interruption is raised again.
    """

    def __init__(
        self,
        transport: Transport,
        keeping: Callable[[Keep | Forget], None],
        afterwards: Callable[[], Flow[None] | None] = lambda: None,
    ) -> None:
        """`afterwards`: what is to be run after a flow that worked, now and then."""
        self._transport = transport
        self._keeping = keeping
        self._afterwards = afterwards

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end. Raises `InvalidRequest` for values that no message can carry."""
        result = self._run(flow)
        if (more := self._afterwards()) is not None:
            self._run(more)
        return result

    def _run(self, flow: Flow[T]) -> T:
        try:
            effect = begin(flow)
            while True:
                try:
                    outcome = self._carry_out(effect)
                except BaseException as error:  # noqa: BLE001 - the flow decides how to handle it
                    effect = flow.throw(error)
                else:
                    effect = flow.send(outcome)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _carry_out(self, effect: Effect) -> object:
        match effect:
            case Attempt(method, request, address, timeout_s):
                return self._transport.unary(method, request, address, timeout_s)
            case Pause(seconds):
                sleep(seconds)
            case Keep() | Forget():
                self._keeping(effect)
        return None
