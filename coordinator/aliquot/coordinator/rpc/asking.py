"""From a message that asks for a lease to what is decided about it."""

from __future__ import annotations

from asyncio import Future
from typing import NamedTuple

from aliquot.common import catalog, names
from aliquot.common.errors import AliquotError
from aliquot.common.ids import IdGenerator
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.roles import Action
from aliquot.coordinator.core.commands.outcomes import AllocateOutcome
from aliquot.coordinator.core.values.errors import NeverFits
from aliquot.coordinator.core.values.types import Demand
from aliquot.coordinator.reading.totals import Totals
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.rpc.caller import at_home, caller
from aliquot.coordinator.upkeep.keepalive import KeepAlive
from aliquot.coordinator.wire.placing import body_of, read_places
from aliquot.coordinator.wire.requests import ReadRequest, read_request
from aliquot.coordinator.writing.writer import Writer
from aliquot.v1 import leases_pb2

Wish = c.Allocate | c.GrantOn


class Asked(NamedTuple):
    """A wish that is being decided."""

    wish: Wish
    reply: Future[AllocateOutcome]


class Asking:
    """See the module's docstring."""

    def __init__(self, writer: Writer, view: View, ids: IdGenerator, keepalive: KeepAlive) -> None:
        self._writer = writer
        self._view = view
        self._ids = ids
        self._keepalive = keepalive

    def read(self, request: leases_pb2.AllocateRequest | leases_pb2.GrantOnRequest) -> Wish:
        """What the caller wishes, if it may. Raises InvalidFieldError or RoleMissing."""
        if request.idempotency_key:
            names.validate_idempotency_key(request.idempotency_key)
        read = read_request(at_home(request.request), self._view.node_id_of)
        caller().must(Action.ALLOCATE, read.spec.tenant)
        if isinstance(request, leases_pb2.GrantOnRequest):
            return self._there(request, read)
        return c.Allocate(
            lease_id=self._ids.lease_id(),
            request=read.spec,
            key=request.idempotency_key,
            body_sha256=read.body_sha256,
            no_queue=read.no_queue,
            by=caller().principal,
        )

    def _there(self, request: leases_pb2.GrantOnRequest, read: ReadRequest) -> c.GrantOn:
        return c.GrantOn(
            lease_id=self._ids.lease_id(),
            request=read.spec,
            places=read_places(request.places, self._view.node_id_of),
            key=request.idempotency_key,
            body_sha256=body_of(read.body_sha256, request.places),
            by=caller().principal,
        )

    def ask(self, wish: Wish) -> Asked:
        """Have it decided. Raises what `Writer.ask` raises, and RoleMissing for the key of a colleague's lease."""
        self._keep(wish)
        return Asked(wish, self._writer.ask(wish))

    def _keep(self, wish: Wish) -> None:
        """Who repeats a call keeps its lease from here on: while the disk is slow the answer, which names the lease,
        may come later than the end of its TTL.
        """
        state = self._writer.state
        lease_id = state.keys.get((wish.request.tenant, wish.key)) if state is not None and wish.key else None
        lease = self._view.leases.get(lease_id or "")
        if lease is not None:
            caller().must_hold(lease, Action.KEEP_OTHERS)
            self._keepalive.renew(lease.lease_id)

    def try_ask(self, request: leases_pb2.AllocateRequest | leases_pb2.GrantOnRequest) -> Asked | AliquotError:
        """Read it and have it decided; or why not, told in its turn with the others of its batch."""
        try:
            return self.ask(self.read(request))
        except AliquotError as error:
            return error

    async def outcome(self, asked: Asked) -> AllocateOutcome:
        """What was decided, once it is durable. Raises the core's refusals, with models that were perhaps meant."""
        try:
            return await asked.reply
        except NeverFits as error:
            name_near_models(error, asked.wish.request.demand, self._view.totals)
            raise


_MODELS_SHOWN = 8


def name_near_models(error: NeverFits, demand: Demand, totals: Totals) -> None:
    """Replace the hint where the obstacle is that no device has a model that was asked for."""
    asked = [name for names in demand.models for name in names]
    there = sorted({model for (_, model), of_class in totals.classes.items() if of_class.devices})
    if not asked or not there or set(asked) & set(there):
        return
    near = list(dict.fromkeys(name for wanted in asked for name in catalog.nearest_names(wanted, there)))
    meant = f"; did you mean {' or '.join(near[:2])}?" if near else ""
    more = f" and {len(there) - _MODELS_SHOWN} more" if len(there) > _MODELS_SHOWN else ""
    error.hint = f"the pool has {', '.join(there[:_MODELS_SHOWN])}{more}{meant}"
