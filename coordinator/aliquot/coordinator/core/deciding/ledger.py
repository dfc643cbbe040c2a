"""What people and agents post to the ledger: money, corrections, measured use, the closing of old days."""

from __future__ import annotations

from typing import Any

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.ledger.entries import QUANTITIES, Entry, EntryKind
from aliquot.coordinator.core.books.ledger.facts import (
    BooksClosed,
    BudgetCrossed,
    CreditPosted,
    UsageCorrected,
    UsageFolded,
    UseObserved,
)
from aliquot.coordinator.core.books.ledger.folding import DAY_MS
from aliquot.coordinator.core.books.ledger.meters import ALERT_PERMILLE
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import FOLDED_AT_ONCE, Known
from aliquot.coordinator.core.values.errors import IdempotencyMismatch, InvalidField
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due

_MONEY_MAX = 1 << 62
_DIGITS_MAX = 64
_REFERENCE_CHARS_MAX = 128


def post_credit(known: Known, command: c.PostCredit, now_ms: int) -> Decision[None]:
    """Post money of a tenant. The same again changes nothing, so that a retry never pays twice.

    Raises InvalidField, and IdempotencyMismatch where the reference was used for another payment.
    """
    if not -_MONEY_MAX <= command.money_micro <= _MONEY_MAX or not command.money_micro:
        raise InvalidField("money_micro", f"{command.money_micro} can't be posted")
    _check_reference(command.reference)
    old = known.ledger.posted(command.reference)
    if old is not None:
        if (old.kind, old.tenant, old.money_micro) != (EntryKind.CREDIT, command.tenant, command.money_micro):
            raise _other_posting(old)
        return NOTHING
    fact = CreditPosted(
        at_ms=now_ms,
        tenant=command.tenant,
        money_micro=command.money_micro,
        reference=command.reference,
        note=command.note,
    )
    return Decision((fact,))


def correct_usage(known: Known, command: c.CorrectUsage, now_ms: int) -> Decision[None]:
    """Correct a charge by a new entry. The same again changes nothing.

    Raises InvalidField, and IdempotencyMismatch where the reference was used for something else.
    """
    _check_reference(command.reference)
    share_milli_ms = _decimal("share_milli_ms", command.share_milli_ms)
    memory_byte_ms = _decimal("memory_byte_ms", command.memory_byte_ms)
    old = known.ledger.posted(command.reference)
    if old is not None:
        was = (old.kind, old.tenant, old.queue, old.model, old.share_milli_ms, old.memory_byte_ms)
        wanted = (command.tenant, command.queue, command.model, int(share_milli_ms), int(memory_byte_ms))
        if was != (EntryKind.CORRECTION, *wanted):
            raise _other_posting(old)
        return NOTHING
    fact = UsageCorrected(
        at_ms=now_ms,
        tenant=command.tenant,
        queue=command.queue,
        model=command.model,
        share_milli_ms=share_milli_ms,
        memory_byte_ms=memory_byte_ms,
        reference=command.reference,
        note=command.note,
    )
    return Decision((fact,))


def observe_use(known: Known, command: c.ObserveUse, now_ms: int) -> Decision[None]:
    """Add what agents measured. Ignored for leases that are gone, and where nothing was measured."""
    if not command.tenant and command.lease_id not in known.leases:
        return NOTHING
    amounts = {name: getattr(command, name) for name in QUANTITIES}
    if not any(amounts.values()):
        return NOTHING
    if min(amounts.values()) < 0:
        raise InvalidField("busy_milli_ms", "measured use can't be negative")
    fields: dict[str, Any] = {
        name: amount if name.endswith("interval_ms") else str(amount) for name, amount in amounts.items()
    }
    return Decision((UseObserved(at_ms=now_ms, lease_id=command.lease_id, tenant=command.tenant, **fields),))


def close_books(known: Known, command: c.CloseBooks, now_ms: int) -> Decision[None]:
    """Sum up the entries of days long gone. The moment must be a midnight (UTC) that has passed."""
    if command.up_to_ms % DAY_MS or command.up_to_ms > now_ms:
        raise InvalidField("up_to_ms", "books are closed at a midnight (UTC) that has passed")
    if command.up_to_ms <= known.ledger.closed_up_to_ms:
        return NOTHING
    return Decision((BooksClosed(at_ms=now_ms, up_to_ms=command.up_to_ms),))


def _other_posting(known: Entry) -> IdempotencyMismatch:
    return IdempotencyMismatch(
        f"the reference {known.reference!r} stands for another {known.kind.name.lower()}, of tenant {known.tenant}",
        hint="give this one a reference of its own",
    )


def _check_reference(reference: str) -> None:
    if not reference or len(reference) > _REFERENCE_CHARS_MAX or not reference.isprintable():
        raise InvalidField(
            "reference", "needs 1 to 128 printable characters", hint="such as the number of the payment or ticket"
        )


def _decimal(field: str, text: str) -> str:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MAX:
        raise InvalidField(field, f"{text!r} is no whole decimal number", hint="such as -3600000000")
    return str(int(text))


def _budget(known: Known, tenant: str, now_ms: int) -> list[Fact]:
    """Record that a budget reached a level; try requests again that waited for the next period."""
    meter = known.meters.get(tenant)
    if meter is None:
        return []
    period_start_ms = now_ms - now_ms % meter.budget.period.length_ms
    if period_start_ms > meter.period_start_ms or now_ms == period_start_ms:
        known.memory.look_again = True
    reached = max((level for level in ALERT_PERMILLE if meter.permille(now_ms) >= level), default=0)
    if reached and known.ledger.levels.get(tenant, (0, 0)) < (period_start_ms, reached):
        return [BudgetCrossed(at_ms=now_ms, tenant=tenant, permille=reached, period_start_ms=period_start_ms)]
    return []


def _fold(known: Known, _: str, now_ms: int) -> list[Fact]:
    """Sum up the oldest usage: a step of those beyond what is kept entry by entry."""
    known.memory.fold_due = False
    surplus = known.ledger.usage_entries - known.config.ledger_entries_max
    if surplus <= 0:
        return []
    return [UsageFolded(at_ms=now_ms, up_to_number=known.ledger.nth_usage(min(surplus, FOLDED_AT_ONCE)))]


DECIDES = Decides(
    commands=by_kind(post_credit, correct_usage, observe_use, close_books), due={Due.BUDGET: _budget, Due.FOLD: _fold}
)
