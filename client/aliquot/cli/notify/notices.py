"""What is worth telling, and to whom: pure. Each warning once for each rule, however often it is heard of; of budgets,
that four fifths are used, and all.

A lease's record says all: how often it was warned in this spell of idleness, and since when the spell goes on. So a
notifier that starts again, or missed changes, finds out from the leases that there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.client import Lease, LeaseState
from aliquot.client.admin import TenantView
from aliquot.common.latest import Latest
from aliquot.common.quantity import format_milli

SENT_KEPT = 20_000
BUDGET_LEVELS_PERMILLE = (800, 1000)
_PERIOD_HOURS = {"hour": 1, "day": 24, "week": 168, "month": 720}
_OF_BUDGET = (
    "When it is used up nothing new is granted until the next one begins. What runs goes on.\nSee: aliquot tenants"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Whom to tell of whose leases and budgets."""

    name: str
    to: tuple[str, ...] = ()
    """Where to, as Apprise writes it: `mailto://…`, `slack://…`, `json://…`."""
    control: str = ""
    """An address that findings of low use are posted to, for programs that optimise or reclaim."""
    tenant: str = ""
    """Its leases and those of all below it; empty: everybody's."""
    control_token: str = ""
    """Shown there as a bearer token."""

    def concerns(self, tenant: str) -> bool:
        """Whether a tenant's leases are told of."""
        return not self.tenant or tenant == self.tenant or tenant.startswith(self.tenant + "/")


@dataclass(frozen=True, slots=True)
class Notice:
    """One message about one warning, for one rule."""

    rule: Rule
    key: str
    """The same for the same message."""
    title: str
    body: str
    lease: Lease | None = None
    """None: it is about a budget."""
    number: int = 0
    """Of the warning, in its lease's spell of idleness."""


class Notices:
    """Remembers what was told. Not thread-safe."""

    def __init__(self, rules: Sequence[Rule], sent: Sequence[str] = ()) -> None:
        self._rules = tuple(rules)
        self._sent: Latest[str, None] = Latest(SENT_KEPT)
        self._sent.update(dict.fromkeys(sent))

    @property
    def sent(self) -> list[str]:
        """Keys of what was told, the latest last; bounded."""
        return list(self._sent)

    def of(self, lease: Lease) -> list[Notice]:
        """What is to be told of a lease now."""
        use = lease.use
        if use is None or not use.warned or lease.state is LeaseState.ENDED or lease.redacted:
            return []
        found = []
        for rule in self._rules:
            key = f"{rule.name} {lease.lease_id} {use.since_ms} {use.warned}"
            if rule.concerns(lease.tenant) and self._is_new(key):
                found.append(Notice(rule, key, _title(lease), _body(lease), lease, use.warned))
        return found

    def of_budget(self, tenant: TenantView, now_ms: int) -> list[Notice]:
        """What is to be told of a tenant's budget now: to people only, once in each of its periods."""
        budget, permille = tenant.spec.budget, tenant.budget_permille
        level = max((level for level in BUDGET_LEVELS_PERMILLE if permille >= level), default=0)
        if budget is None or not level:
            return []
        period = now_ms // (_PERIOD_HOURS.get(budget.period, 1) * 3_600_000)
        name, found = tenant.spec.name, []
        for rule in self._rules:
            key = f"{rule.name} budget {name} {period} {level}"
            if rule.to and rule.concerns(name) and self._is_new(key):
                title = f"{name} has used {permille / 10:g} % of its budget of this {budget.period}"
                found.append(Notice(rule, key, title, _OF_BUDGET))
        return found

    def _is_new(self, key: str) -> bool:
        new = key not in self._sent
        self._sent[key] = None
        return new

    def failed(self, notice: Notice) -> None:
        """It was not told after all: it may be once more."""
        self._sent.pop(notice.key, None)


def _title(lease: Lease) -> str:
    state = lease.use.state.lower() if lease.use is not None else "idle"
    return f"{lease.name or lease.lease_id} of {lease.tenant} is {state}"


def _body(lease: Lease) -> str:
    share = format_milli(sum(part.share_milli for part in lease.slices))
    nodes = ", ".join(sorted({part.node_name for part in lease.slices}))
    lines = [f"Lease {lease.lease_id} holds {share} GPUs on {nodes}."]
    if lease.warnings:
        lines.append(f"It is {lease.warnings[-1]}.")
    lines.append(f"To keep it for a while: aliquot exempt {lease.lease_id} --for 4h --reason …")
    lines.append(f"To give it back: aliquot release {lease.lease_id}")
    return "\n".join(lines)
