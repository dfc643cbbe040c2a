"""Carries orders out: takes them, runs the administrator's command for each, and says what came of it.

A client of the contract in its own process: a command that hangs holds up nobody, and two runners share the work, as
an order is given to one of them at a time. What one has done and could not say it says again before it does it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from aliquot.cli.supply.hook import Answer, message_of, run
from aliquot.client import Conflict, InvalidRequest, NotFound, Pool, PoolError
from aliquot.client.supply import NodeOrder, NodeShape, OrderWay
from aliquot.common.clock import Clock

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Commands that run at a time."""
FOR_S_MAX = 3_600


class Runner:
    """See the module's docstring."""

    def __init__(
        self,
        pool: Pool,
        name: str,
        command: Sequence[str],
        *,
        timeout_s: float,
        clock: Clock,
        invites: bool = False,
    ) -> None:
        """`invites`: nodes that are to come are told an invite with which they can join."""
        self._pool = pool
        self._name = name
        self._command = command
        self._timeout_s = timeout_s
        self._invites = invites
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="order")
        self._working: dict[int, Future[Answer]] = {}
        self._unsaid: dict[int, Answer] = {}
        self._clock = clock

    def look(self) -> int:
        """Take what there is, say what is done; how much is at work. Raises `PoolError`."""
        self._gather()
        for number, answer in list(self._unsaid.items()):
            self._say(number, answer)
        for_s = min(FOR_S_MAX, int(3 * self._timeout_s) + 30)
        free = AT_ONCE - len(self._working)
        orders = self._pool.supply.take(self._name, for_s=for_s, orders_max=AT_ONCE) if free > 0 else ()
        fresh = [order for order in orders if order.number not in self._working and order.number not in self._unsaid]
        if fresh:
            spec = self._pool.supply.get(advice=False).spec
            shapes = {shape.name: shape for shape in spec.shapes}
            for order in fresh[:free]:
                log.info("%s: %s %s: %s", order.order_id, order.way.lower(), order.node_name, order.why)
                shape = shapes.get(order.shape)
                self._working[order.number] = self._threads.submit(self._carry_out, order, shape)
        return len(self._working) + len(self._unsaid)

    def run(self, every_s: float, stop: threading.Event) -> None:
        """Look, again and again, until it is told to stop."""
        while not stop.is_set():
            try:
                busy = self.look()
            except PoolError as error:
                log.warning("the pool can't be asked for orders: %s", error)
                busy = 0
            stop.wait(min(every_s, 0.5) if busy else every_s)

    def settle(self) -> None:
        """Wait for the commands that run, and say what came of them. Raises `PoolError`."""
        for future in list(self._working.values()):
            future.exception()
        self._gather()
        for number, answer in list(self._unsaid.items()):
            self._say(number, answer)

    def close(self) -> None:
        """Wait for what is under way: orders that nobody answers are given to another after a while."""
        self._threads.shutdown()

    def _gather(self) -> None:
        for number, future in list(self._working.items()):
            if future.done():
                del self._working[number]
                failure = future.exception()
                answer = future.result() if failure is None else Answer(accepted=False, problem=repr(failure))
                self._unsaid[number] = answer

    def _carry_out(self, order: NodeOrder, shape: NodeShape | None) -> Answer:
        return run(self._command, message_of(order, shape, self._invite(order)), self._timeout_s)

    def _invite(self, order: NodeOrder) -> dict[str, Any] | None:
        if not self._invites or order.way is not OrderWay.ADD:
            return None
        invite = self._pool.access.invite_node(order.node_name)
        return {"invite": invite.invite, "addresses": list(invite.addresses), "ca_pem": invite.ca_pem}

    def _say(self, number: int, answer: Answer) -> None:
        due_ms = self._clock.now_ms() + answer.due_s * 1000 if answer.due_s else 0
        try:
            self._pool.supply.report(
                number,
                self._name,
                accepted=answer.accepted,
                reference=answer.reference,
                node_name=answer.node_name,
                due_ms=due_ms,
                problem=answer.problem,
                final=answer.final,
            )
        except InvalidRequest as error:  # its answer names what can't be
            self._pool.supply.report(number, self._name, accepted=False, problem=str(error)[:200])
        except (Conflict, NotFound) as error:
            log.warning("order-%d: %s", number, error)
        self._unsaid.pop(number, None)
        level = logging.INFO if answer.accepted else logging.WARNING
        log.log(level, "order-%d: %s", number, answer.problem or answer.reference or "accepted")
