"""`Pool.supply`: nodes that come when they are missed, and go when they are not."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.client import supply
from aliquot.client._async.calling import AsyncCalls
from aliquot.client._messages import read, write
from aliquot.client._methods import methods_of
from aliquot.v1 import supply_pb2

SUPPLY = methods_of(supply_pb2.DESCRIPTOR, "SupplyService")


class AsyncSupply(AsyncCalls):
    """What is on offer, what is ordered, and carrying it out. Each method is one call.

    Any of them raises `NotPermitted` where the caller's roles don't allow it, `Unavailable` and `DeadlineExceeded`, and
    `InvalidRequest` for values out of their range.
    """

    async def declare(self, spec: supply.SupplySpec, *, version: int | None = None) -> int:
        """Put these shapes and rules in the place of the earlier ones; returns the new version.

        `version` is what was read before: raises `Conflict` if somebody has changed it since. None: whatever is there.
        """
        offered = write(spec, supply_pb2.SupplySpec())
        return int((await self._send(SUPPLY["DeclareSupply"], spec=offered, version=version)).version)

    async def get(self, *, advice: bool = True) -> supply.Supply:
        """What is on offer and ordered and, with `advice`, what the pool would do now."""
        return await self._ask(supply.Supply, SUPPLY["GetSupply"], without_advice=not advice)

    async def take(self, taker: str, *, orders_max: int = 8, for_s: int = 300) -> tuple[supply.NodeOrder, ...]:
        """Orders to carry out, for `for_s`; asking again under the same name gives the same."""
        answer = await self._send(SUPPLY["TakeOrders"], taker=taker, orders_max=orders_max, for_s=for_s)
        return tuple(read(order, supply.NodeOrder) for order in answer.orders)

    async def report(
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
    ) -> supply.NodeOrder:
        """What became of an order that this program took. Raises `Conflict` where another has it by now, and `NotFound`
        where it is over.
        """
        return await self._ask(
            supply.NodeOrder,
            SUPPLY["ReportOrder"],
            number=number,
            taker=taker,
            accepted=accepted,
            reference=reference,
            node_name=node_name,
            due_ms=due_ms,
            problem=problem,
            final=final,
        )

    async def withdraw(self, number: int, *, reason: str = "") -> supply.NodeOrder:
        """Want no more of an order. Raises `NotFound` where it is over."""
        return await self._ask(supply.NodeOrder, SUPPLY["WithdrawOrder"], number=number, reason=reason)

    async def expect(self, series: Iterable[supply.ExpectedSeries]) -> None:
        """Tell what is expected to be used: nodes come earlier for it, and never fewer."""
        told = [write(each, supply_pb2.ExpectedSeries()) for each in series]
        await self._send(SUPPLY["ExpectDemand"], series=told)
