# Written by tools/unasync.py from client/aliquot/client/_async/capacity.py. Change that, then `make sync`.
"""`Pool.capacity`: nodes that come when they are missed, and go when they are not."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.client import _capacity as flows
from aliquot.client import capacity
from aliquot.client._flow import Context
from aliquot.client._sync.runner import Runner
from aliquot.v1 import capacity_pb2


class Capacity:
    """What is on offer, what is ordered, and carrying it out. Each method is one call.

    Any of them raises `NotPermitted` where the caller's roles don't allow it, `Unavailable` and `DeadlineExceeded`, and
    `InvalidRequest` for values out of their range.
    """

    def __init__(self, context: Context, timeout_s: float, runner: Runner) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._run = runner.run

    def declare(self, spec: capacity.CapacitySpec, *, version: int | None = None) -> int:
        """Put these shapes and rules in the place of the earlier ones; returns the new version.

        `version` is what was read before: raises `Conflict` if somebody has changed it since. None: whatever is there.
        """
        return self._run(flows.declare(self._context, spec, version, self._timeout_s))

    def get(self, *, advice: bool = True) -> capacity.Capacity:
        """What is on offer and ordered and, with `advice`, what the planner would do now."""
        return self._run(flows.get(self._context, self._timeout_s, advice=advice))

    def take(self, taker: str, *, orders_max: int = 8, for_s: int = 300) -> tuple[capacity.NodeOrder, ...]:
        """Orders to carry out, for `for_s`; asking again under the same name gives the same."""
        return self._run(flows.take(self._context, taker, orders_max, for_s, self._timeout_s))

    def report(
        self,
        number: int,
        taker: str,
        *,
        accepted: bool,
        reference: str = "",
        node_name: str = "",
        due_ms: int = 0,
        problem: str = "",
        final: bool = False,
    ) -> capacity.NodeOrder:
        """What became of an order that this program took. Raises `Conflict` where another has it by now, and `NotFound`
        where it is over.
        """
        request = capacity_pb2.ReportOrderRequest(
            number=number,
            taker=taker,
            accepted=accepted,
            reference=reference,
            node_name=node_name,
            due_ms=due_ms,
            problem=problem,
            final=final,
        )
        return self._run(flows.report(self._context, request, self._timeout_s))

    def withdraw(self, number: int, *, reason: str = "") -> capacity.NodeOrder:
        """Want no more of an order. Raises `NotFound` where it is over."""
        return self._run(flows.withdraw(self._context, number, reason, self._timeout_s))

    def expect(self, series: Iterable[capacity.ExpectedSeries]) -> None:
        """Tell what is expected to be used: nodes come earlier for it, and never fewer."""
        self._run(flows.expect(self._context, series, self._timeout_s))
