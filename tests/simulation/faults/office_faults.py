"""What is done about money, and to have more fit: prices, payments, corrections, invoices, closed books, moves."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from aliquot.v1 import admin_pb2
from tests.simulation.faults.people_faults import ADMIN, administer, run_for
from tests.simulation.sim.clocks import MIDNIGHT_MS
from tests.simulation.sim.people import TENANTS

if TYPE_CHECKING:
    from tests.simulation.faults.kinds import Fault
    from tests.simulation.sim.world import World

INVOICE_LAG_MS = 5_000
_MODELS = ("A100-40", "A100-80", "H100-80", "L4", "*")


def _ask(world: World, method: str, request: Any, *, times: int = 1) -> None:
    for _ in range(times):
        run_for(world, administer(world, method, request, 10, service=ADMIN), f"admin: {method}")


def settle_accounts(world: World, until_ms: int) -> None:
    """Everybody gets an invoice for all that there was."""
    for tenant in sorted(world.auditor.books.money.used):
        _ask(world, "GetInvoice", admin_pb2.GetInvoiceRequest(tenant=tenant, from_ms=0, to_ms=until_ms))


def _rates(world: World, fault: Fault, random: Random) -> None:
    """New prices hold from now on; sometimes they are declared twice in a breath."""
    for _ in range(random.choice((1, 1, 2))):
        card = admin_pb2.RateCard(currency="EUR", minimum_ms=random.choice((0, 1_000, 10_000, 60_000)))
        for model in random.sample(_MODELS, random.randint(0, len(_MODELS))):
            card.rates.add(model=model, gpu_hour_micro=random.randrange(10**7), gib_hour_micro=random.randrange(10**5))
        above = 0
        for _ in range(random.randint(0, 3)):
            card.tiers.add(above_gpu_milli_hours=above, discount_permille=random.randrange(1000))
            above += random.randint(1, 400)
        _ask(world, "Apply", admin_pb2.ApplyRequest(rates=card))


def _credit(world: World, fault: Fault, random: Random) -> None:
    """Money comes in; whoever posts it does so twice."""
    request = admin_pb2.PostCreditRequest(
        tenant=random.choice(TENANTS), money_micro=random.choice((1, -1)) * random.randint(1, 10**12)
    )
    request.reference = f"payment-{fault.seed}"
    _ask(world, "PostCredit", request, times=2)


def _correct(world: World, fault: Fault, random: Random) -> None:
    """What was charged is made good, twice under one number."""
    request = admin_pb2.CorrectUsageRequest(
        tenant=random.choice(TENANTS), queue="default", model=random.choice(_MODELS)
    )
    request.share_milli_ms = str(random.randint(-(10**9), 10**6))
    request.memory_byte_ms = str(random.randint(-(10**18), 10**15))
    request.reference = f"ticket-{fault.seed}"
    _ask(world, "CorrectUsage", request, times=2)


def _invoice(world: World, fault: Fault, random: Random) -> None:
    """Somebody asks for the invoice of a period that has just ended."""
    now_ms = world.auditor.books.at_ms - INVOICE_LAG_MS
    to_ms = random.choice((now_ms, now_ms - random.randrange(60_000), MIDNIGHT_MS))
    from_ms = random.choice((0, to_ms - random.randint(1, 90_000), MIDNIGHT_MS))
    for tenant in random.sample(TENANTS, 2):
        _ask(world, "GetInvoice", admin_pb2.GetInvoiceRequest(tenant=tenant, from_ms=from_ms, to_ms=to_ms))


def _close_books(world: World, fault: Fault, random: Random) -> None:
    """The entries of the day before are summed up, once midnight has passed."""
    _ask(world, "CloseBooks", admin_pb2.CloseBooksRequest(up_to_ms=MIDNIGHT_MS), times=2)


ACTIONS: dict[str, Any] = {
    "money.rates": _rates,
    "money.credit": _credit,
    "money.correct": _correct,
    "money.invoice": _invoice,
    "money.close_books": _close_books,
}
