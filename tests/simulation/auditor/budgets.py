"""What tenants may use up within an hour, a day, a week or a month: then nothing new is granted until it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.money import GPU_HOUR, Used

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

_HOUR_MS = 3_600_000
_LASTS_MS = {"hour": _HOUR_MS, "day": 24 * _HOUR_MS, "week": 168 * _HOUR_MS, "month": 720 * _HOUR_MS}
_SCALE = GPU_HOUR << 30
"""Sums of money are in so many parts of a millionth, so that nothing is rounded."""


class Budgets:
    """Adds up anew, each time, what was used in the period."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._budgets: dict[str, dict[str, Any]] = {}
        books.handle({"budget": self._crossed})

    def declare(self, tenant: str, budget: dict[str, Any]) -> None:
        """A tenant was declared, with a budget or without."""
        self._budgets[tenant] = budget

    def _crossed(self, fact: list[Any]) -> str:
        tenant, permille, start_ms = fact[2:5]
        used = self._permille(tenant, fact[1])
        if start_ms != self._start_ms(tenant, fact[1]):
            return f"the budget of {tenant} is said to be for a period that began at {start_ms}"
        return "" if used >= permille else f"{tenant} is said to have used {permille}, but has {used} permille"

    def used_up(self, tenant: str, at_ms: int) -> str:
        """Why nothing may be granted to a tenant; empty: it may."""
        if not self._budgets.get(tenant):
            return ""
        permille = self._permille(tenant, at_ms)
        return f"{tenant} is granted more, but has used {permille} permille of its budget" if permille >= 1000 else ""

    def _start_ms(self, tenant: str, at_ms: int) -> int:
        return at_ms - at_ms % _LASTS_MS[self._budgets[tenant].get("period", "month")]

    def _permille(self, tenant: str, at_ms: int) -> int:
        budget, start_ms = self._budgets[tenant], self._start_ms(tenant, at_ms)
        share = money = 0
        for used in self._intervals(tenant, start_ms, at_ms):
            share += used.share * (used.to_ms - used.from_ms)
            money += self._books.money.at_list_price(used)
        found = 0
        if budget.get("share_milli_ms"):
            found = share * 1000 // budget["share_milli_ms"]
        if budget.get("money_micro"):
            found = max(found, money * 1000 // (budget["money_micro"] * _SCALE))
        return found

    def _intervals(self, tenant: str, start_ms: int, at_ms: int) -> list[Used]:
        """What was used since, cut off at the start."""
        money = self._books.money
        found = []
        for used in reversed(money.used.get(tenant, ())):  # by when they ended
            if used.to_ms <= start_ms:
                break
            found.append(used)
        found += [
            Used(piece.charged_from_ms, at_ms, "", piece.model, piece.share, piece.memory)
            for piece, _ in self._books.charged_now(tenant)
        ]
        return [used._replace(from_ms=max(used.from_ms, start_ms)) for used in found]
