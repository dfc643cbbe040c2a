"""What tenants and queues may hold: no grant ever passes a limit, whatever changes meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.auditor.quota_windows import QuotaWindows
from tests.simulation.auditor.records import Piece, Story, above

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

NO_LIMIT = (-1, -1)
MILLIONTHS = 10**6


_QUEUE = "queue "
"""Before the name of a queue, which has limits as a tenant has."""
_TREE = "all of "
"""Before the name of a tenant: what it and those below it hold, which its limit is on."""


class Limit(NamedTuple):
    """Share and bytes; of all models, or of one. Below zero: none."""

    model: str
    share: int
    memory: int


class Quotas:
    """Facts about tenants, and what each of them holds."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.windows = QuotaWindows(books)
        self._limits: dict[str, list[Limit]] = {}
        """Of quotas that are the same at all times."""
        self._promised: set[str] = set()
        """Tenants that were declared."""
        self._held: dict[tuple[str, str], list[int]] = {}
        """(tenant or queue, model) -> [share, bytes]; the model "" stands for all of them. A tenant with all below it
        has `_TREE` before its name.
        """
        self._peaceful: set[str] = set()
        """Queues whose requests end nobody for their priority."""
        books.handle(
            {
                "tenant": self._tenant,
                "tenant-": self._removed,
                "queue": self._queue,
                "queue-": self._queue_removed,
            }
        )

    def _tenant(self, fact: list[Any]) -> str:
        spec = fact[2]
        quota = spec.get("quota", {})
        self.windows.declare("t", spec["name"], quota)
        self._limits[_TREE + spec["name"]] = _limits_of(quota)
        self._promised.add(spec["name"])
        self._books.money.default_queue(spec["name"], spec.get("default_queue", ""))
        self._books.budgets.declare(spec["name"], spec.get("budget", {}))
        self._books.victims.declare(spec["name"], spec)
        self._books.offences.declare(spec["name"], spec)
        self._books.ceilings.declare(spec["name"], spec)
        return self._books.owning.declare_tenant(spec["name"], spec)

    def _queue(self, fact: list[Any]) -> str:
        spec = fact[2]
        self.windows.declare("q", spec["name"], spec.get("quota", {}))
        self._limits[_QUEUE + spec["name"]] = _limits_of(spec.get("quota", {}))
        self._books.turns.declare(spec)
        self._books.owning.declare_queue(spec["name"], spec)
        self._books.placing.declare_queue(spec["name"], spec)
        (self._peaceful.discard if spec.get("preempts", True) else self._peaceful.add)(spec["name"])
        return ""

    def _removed(self, fact: list[Any]) -> str:
        self._limits.pop(_TREE + fact[2], None)
        self.windows.declare("t", fact[2], None)
        self._promised.discard(fact[2])
        self._books.money.default_queue(fact[2], "")
        self._books.budgets.declare(fact[2], {})
        self._books.victims.declare(fact[2], {})
        self._books.offences.declare(fact[2], {})
        self._books.ceilings.declare(fact[2], {})
        self._books.owning.remove_tenant(fact[2])
        return ""

    def _queue_removed(self, fact: list[Any]) -> str:
        self._books.owning.declare_queue(fact[2], None)
        self._books.placing.declare_queue(fact[2], {})
        return ""

    def guaranteed(self, tenant: str) -> tuple[int, int]:
        """Share and bytes, as they are in force."""
        share, memory = self.windows.now("t", tenant).get("guaranteed", (0, 0))
        return share, memory

    def hold(self, story: Story, piece: Piece, sign: int) -> str:
        """A slice more, or less. Returns the limit that it passes, its tenant's or its queue's; empty: none."""
        trees = [_TREE + tenant for tenant in above(story.tenant)]
        owners = (story.tenant, *trees, _QUEUE + self._books.money.queue_of(story))
        return next(filter(None, [self._hold(owner, piece, sign) for owner in owners]), "")

    def _hold(self, owner: str, piece: Piece, sign: int) -> str:
        for model in ("", piece.model):
            held = self._held.setdefault((owner, model), [0, 0])
            held[0] += sign * piece.share
            held[1] += sign * piece.memory
        if sign > 0:
            for limit in self._limits_now(owner):
                share, memory = self._held.get((owner, limit.model), (0, 0))
                if limit.model in ("", piece.model) and (0 <= limit.share < share or 0 <= limit.memory < memory):
                    return f"{owner} holds {share} milli and {memory} bytes of {limit}"
        return ""

    def _limits_now(self, owner: str) -> list[Limit]:
        kind, name = ("q", owner.removeprefix(_QUEUE)) if owner.startswith(_QUEUE) else ("t", owner.removeprefix(_TREE))
        if owner in self._limits and self.windows.limits_at_some_time(kind, name):
            return _limits_of(self.windows.now(kind, name))
        return self._limits.get(owner, [])

    def promises_anything(self, story: Story) -> bool:
        """Whether some of what its tenant holds may be covered by a guarantee."""
        return any(self.guaranteed(story.tenant))

    def preempts(self, story: Story) -> bool:
        """Whether a request may end leases of lower priority."""
        return self._books.money.queue_of(story) not in self._peaceful

    def covers(self, tenant: str) -> bool:
        """Whether all that a tenant holds is within its guarantee, as far as the pool can keep what was promised."""
        share, memory = self.guaranteed(tenant)
        if not share and not memory:
            return False
        held = self._held.get((tenant, ""), (0, 0))
        # One factor for everything, as docs/tenancy.md says: of share and memory the scarcer.
        pairs = zip(self.promised(), self._books.inventory.kept(), strict=True)
        factor = min((MILLIONTHS * kept // promised for promised, kept in pairs if promised > kept), default=MILLIONTHS)
        return all(
            not wanted or has <= wanted * factor // MILLIONTHS for wanted, has in ((share, held[0]), (memory, held[1]))
        )

    def promised(self) -> tuple[int, int]:
        """(share, memory) of all guarantees together."""
        promises = [self.guaranteed(tenant) for tenant in self._promised]
        return sum(share for share, _ in promises), sum(memory for _, memory in promises)


def _limits_of(quota: dict[str, Any]) -> list[Limit]:
    limits = [Limit("", *quota.get("limit", NO_LIMIT))]
    limits += [Limit(part["model"], *part.get("limit", NO_LIMIT)) for part in quota.get("models", ())]
    return [limit for limit in limits if limit[1:] != NO_LIMIT]
