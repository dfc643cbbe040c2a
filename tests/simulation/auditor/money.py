"""What tenants owe, from what the books say was held: entries, prices, closed days and invoices, to the millionth."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.auditor.records import Piece, Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

DAY_MS = 86_400_000
GPU_HOUR = 1000 * 3_600_000
GIB_HOUR = (1 << 30) * 3_600_000
MINIMUM_MS = 60_000
"""What a slice pays for at least, where a card does not say so."""


class Used(NamedTuple):
    """A slice was held, and is charged, from one moment to another."""

    from_ms: int
    to_ms: int
    queue: str
    model: str
    share: int
    memory: int


class Price(NamedTuple):
    """Under which an amount is listed."""

    queue: str
    model: str
    gpu_hour_micro: int
    gib_hour_micro: int
    priced: bool


class Bill(NamedTuple):
    """What an invoice must say."""

    lines: dict[Price, tuple[int, int, int, int, int, int]]
    """Used share and bytes, billable share and bytes, slices, amount."""
    discounts: list[tuple[int, int, int]]
    total_micro: int
    paid_micro: int


class Money:
    """Facts about prices and payments; what was used is told by the books."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.used: dict[str, list[Used]] = {}
        """By tenant, in the order in which intervals ended."""
        self._corrections: dict[str, list[list[Any]]] = {}
        self._credits: dict[str, list[tuple[int, int]]] = {}
        self._cards: list[tuple[int, dict[str, Any]]] = []
        self._card_starts: list[int] = []
        self._references: set[str] = set()
        self._queues: dict[str, str] = {}
        """Tenant -> the queue where its requests wait that name none."""
        self.compared = 0
        books.handle(
            {"rates": self._rates, "credit": self._credit, "correct": self._correct, "closed": self._close_books}
        )

    # -- facts

    def default_queue(self, tenant: str, queue: str) -> None:
        """A tenant was declared."""
        self._queues[tenant] = queue

    def queue_of(self, story: Story) -> str:
        """Where a lease waits, and what it counts against."""
        return story.queue or self._queues.get(story.tenant) or "default"

    def charge(self, story: Story, piece: Piece, to_ms: int) -> None:
        """An interval is over."""
        if to_ms > piece.charged_from_ms:
            queue = self.queue_of(story)
            entry = Used(piece.charged_from_ms, to_ms, queue, piece.model, piece.share, piece.memory)
            self.used.setdefault(story.tenant, []).append(entry)

    def _rates(self, fact: list[Any]) -> str:
        self._cards.append((fact[1], fact[2]))
        self._card_starts.append(fact[1])
        return ""

    def _once(self, reference: str) -> str:
        if reference in self._references:
            return f"{reference} is posted twice"
        self._references.add(reference)
        return ""

    def _credit(self, fact: list[Any]) -> str:
        self._credits.setdefault(fact[2], []).append((fact[1], fact[3]))
        return self._once(fact[4])

    def _correct(self, fact: list[Any]) -> str:
        self._corrections.setdefault(fact[2], []).append(fact)
        return self._once(fact[7])

    def _close_books(self, fact: list[Any]) -> str:
        if fact[2] % DAY_MS or fact[2] > fact[1]:
            return f"the books are closed up to {fact[2]}, which is not a midnight that has passed"
        return ""

    # -- invoices

    def bill(self, tenant: str, from_ms: int, to_ms: int) -> Bill:
        """Of a period that is over: whatever happens from now on changes nothing about it."""
        sums: dict[Price, list[int]] = {}
        for used in self.used.get(tenant, ()):
            self._add(sums, used, from_ms, to_ms)
        for piece, story in self._books.charged_now(tenant):
            queue = self.queue_of(story)
            open_until_ms = max(to_ms, piece.charged_from_ms) + 1
            self._add(
                sums,
                Used(piece.charged_from_ms, open_until_ms, queue, piece.model, piece.share, piece.memory),
                from_ms,
                to_ms,
            )
        for fact in self._corrections.get(tenant, ()):
            if from_ms <= fact[1] < to_ms:
                row = sums.setdefault(self._price(fact[1], fact[3], fact[4]), [0] * 5)
                for position, amount in enumerate((fact[5], fact[6]) * 2):
                    row[position] += int(amount)
        paid = sum(money for at_ms, money in self._credits.get(tenant, ()) if from_ms <= at_ms < to_ms)
        return self._sum_up(sums, to_ms, paid)

    def _add(self, sums: dict[Price, list[int]], used: Used, from_ms: int, to_ms: int) -> None:
        """The part of an interval that lies in the period, cut where prices change. That the coordinator sums old
        ones up by hours and days must not be seen.
        """
        if used.to_ms <= from_ms or used.from_ms >= to_ms:
            return
        cuts = sorted(moment for moment in {*self._card_starts, from_ms, to_ms} if used.from_ms < moment < used.to_ms)
        start = used.from_ms
        for end in (*cuts, used.to_ms):
            if from_ms <= start < to_ms:
                row = sums.setdefault(self._price(start, used.queue, used.model), [0] * 5)
                amounts = (used.share * (end - start), used.memory * (end - start))
                for position, amount in enumerate(amounts * 2):
                    row[position] += amount
                if end == used.to_ms:
                    extra_ms = self._short_by_ms(used)
                    row[2] += used.share * extra_ms
                    row[3] += used.memory * extra_ms
                    row[4] += 1
            start = end

    def at_list_price(self, used: Used) -> int:
        """What an interval costs without least amounts and discounts, in parts of a millionth: 1 / (GPU_HOUR << 30)."""
        cost, start = 0, used.from_ms
        for end in (*sorted({moment for moment in self._card_starts if start < moment < used.to_ms}), used.to_ms):
            price = self._price(start, used.queue, used.model)
            by_share = used.share * price.gpu_hour_micro << 30
            cost += (by_share + used.memory * price.gib_hour_micro * 1000) * (end - start)
            start = end
        return cost

    def _card(self, at_ms: int) -> dict[str, Any] | None:
        number = bisect_right(self._card_starts, at_ms)
        return self._cards[number - 1][1] if number else None

    def _short_by_ms(self, used: Used) -> int:
        card = self._card(used.from_ms)
        least_ms: int = card.get("minimum_ms", MINIMUM_MS) if card is not None else 0
        return max(0, least_ms - (used.to_ms - used.from_ms))

    def _price(self, at_ms: int, queue: str, model: str) -> Price:
        rates = {rate[0]: rate for rate in (self._card(at_ms) or {}).get("rates", ())}
        rate = rates.get(model) or rates.get("*")
        return Price(queue, model, rate[1], rate[2], True) if rate else Price(queue, model, 0, 0, False)

    def _sum_up(self, sums: dict[Price, list[int]], to_ms: int, paid: int) -> Bill:
        lines = {}
        volume = subtotal = 0
        for price, row in sums.items():
            cost = Fraction(row[2] * price.gpu_hour_micro, GPU_HOUR) + Fraction(row[3] * price.gib_hour_micro, GIB_HOUR)
            lines[price] = (row[0], row[1], row[2], row[3], row[4], round(cost))
            subtotal += round(cost)
            volume += row[2] if price.priced else 0
        card = self._card(to_ms) or (self._cards[-1][1] if self._cards else {})
        discounts = []
        tiers = card.get("tiers", ()) if volume > 0 else ()
        for number, (above, permille) in enumerate(tiers):
            low = above * (GPU_HOUR // 1000)
            high = tiers[number + 1][0] * (GPU_HOUR // 1000) if number + 1 < len(tiers) else volume
            if min(volume, high) > low:
                part = Fraction(subtotal * (min(volume, high) - low) * permille, volume * 1000)
                discounts.append((above, permille, round(part)))
        return Bill(lines, discounts, subtotal - sum(part for _, _, part in discounts), paid)

    def compare(self, invoice: Any) -> str:
        """What is wrong with an invoice for a period that is over."""
        self.compared += 1
        bill = self.bill(invoice.tenant, invoice.from_ms, invoice.to_ms)
        said = {
            Price(line.queue, line.model, line.gpu_hour_micro, line.gib_hour_micro, line.priced): (
                int(line.share_milli_ms),
                int(line.memory_byte_ms),
                int(line.billable_share_milli_ms),
                int(line.billable_memory_byte_ms),
                line.slices,
                int(line.amount_micro),
            )
            for line in invoice.lines
        }
        period = f"of {invoice.from_ms} to {invoice.to_ms}"
        for price in sorted(said.keys() | bill.lines.keys()):
            if said.get(price) != bill.lines.get(price):
                return f"the invoice {period} says {said.get(price)} for {tuple(price)}, not {bill.lines.get(price)}"
        discounts = [(d.above_gpu_milli_hours, d.discount_permille, int(d.discount_micro)) for d in invoice.discounts]
        if (discounts, int(invoice.total_micro)) != (bill.discounts, bill.total_micro):
            return f"the invoice {period} comes to {invoice.total_micro} less {discounts}, not {bill[1:3]}"
        if int(invoice.paid_micro) != bill.paid_micro:
            return f"the invoice {period} says that {invoice.paid_micro} were paid, not {bill.paid_micro}"
        return ""
