"""What tenants may hold: no grant ever passes a limit, whatever changes meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.auditor.records import Piece

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

NO_LIMIT = (-1, -1)


class Limit(NamedTuple):
    """Share and bytes; of all models, or of one. Below zero: none."""

    model: str
    share: int
    memory: int


class Quotas:
    """Facts about tenants, and what each of them holds."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._limits: dict[str, list[Limit]] = {}
        self._held: dict[tuple[str, str], list[int]] = {}
        """(tenant, model) -> [share, bytes]; the model "" stands for all of them."""
        books.handle({"tenant": self._tenant, "tenant-": self._removed})

    def _tenant(self, fact: list[Any]) -> str:
        spec = fact[2]
        quota = spec.get("quota", {})
        limits = [Limit("", *quota.get("limit", NO_LIMIT))]
        limits += [Limit(part["model"], *part.get("limit", NO_LIMIT)) for part in quota.get("models", ())]
        self._limits[spec["name"]] = [limit for limit in limits if limit[1:] != NO_LIMIT]
        self._books.money.default_queue(spec["name"], spec.get("default_queue", ""))
        return ""

    def _removed(self, fact: list[Any]) -> str:
        self._limits.pop(fact[2], None)
        self._books.money.default_queue(fact[2], "")
        return ""

    def hold(self, tenant: str, piece: Piece, sign: int) -> str:
        """A slice more, or less. Returns the limit that it passes; empty where it passes none."""
        for model in ("", piece.model):
            held = self._held.setdefault((tenant, model), [0, 0])
            held[0] += sign * piece.share
            held[1] += sign * piece.memory
        if sign > 0:
            for limit in self._limits.get(tenant, ()):
                share, memory = self._held.get((tenant, limit.model), (0, 0))
                if limit.model in ("", piece.model) and (0 <= limit.share < share or 0 <= limit.memory < memory):
                    return f"{tenant} holds {share} milli and {memory} bytes of {limit}"
        return ""
