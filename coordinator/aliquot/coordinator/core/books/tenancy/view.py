"""What was declared and is held, for those who only read: what decides is given these, and mypy refuses the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from aliquot.coordinator.core.books.tenancy.in_force import InForce
from aliquot.coordinator.core.books.tenancy.loans import Loan
from aliquot.coordinator.core.books.tenancy.ranking import Part, Rank, Sums
from aliquot.coordinator.core.books.tenancy.specs import Pool, Queue, QueueSpec, Quota, Tenant, TenantSpec

AccountKey = tuple[str, str]
"""("t", tenant), ("s", tenant) with all below it, or ("q", queue)."""


class RankedView(Protocol):
    """`RankedHoldings`."""

    @property
    def version(self) -> int: ...  # noqa: D102
    def __contains__(self, lease_id: object) -> bool: ...
    def __iter__(self) -> Iterator[tuple[str, tuple[Part, ...]]]: ...
    def before(self, rank: Rank) -> Sums: ...  # noqa: D102
    def sums(self, *, but_for: str = "") -> Sums: ...  # noqa: D102


class AccountView(Protocol):
    """`Account`."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def label(self) -> str: ...  # noqa: D102
    @property
    def quota(self) -> Quota: ...  # noqa: D102
    @property
    def share_milli(self) -> int: ...  # noqa: D102
    @property
    def memory_bytes(self) -> int: ...  # noqa: D102
    @property
    def slices(self) -> int: ...  # noqa: D102
    @property
    def by_model(self) -> Mapping[str, Sequence[int]]: ...  # noqa: D102
    @property
    def share_average(self) -> int: ...  # noqa: D102
    @property
    def memory_average(self) -> int: ...  # noqa: D102
    @property
    def average_ms(self) -> int: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102
    @property
    def holders(self) -> Mapping[str, int]: ...  # noqa: D102
    @property
    def ranked(self) -> RankedView: ...  # noqa: D102
    @property
    def coming(self) -> RankedView: ...  # noqa: D102
    @property
    def declared(self) -> Quota: ...  # noqa: D102
    @property
    def in_force(self) -> InForce | None: ...  # noqa: D102

    def youngest(self) -> Iterator[str]:
        """The leases that hold something, who came last first."""


A_co = TypeVar("A_co", bound=AccountView, covariant=True)


class Chain(NamedTuple, Generic[A_co]):
    """The accounts that a lease counts against: of its tenant, its queue and those above, and of trees of tenants."""

    tenant: A_co
    queues: tuple[A_co, ...]
    """From the leaf to the root."""
    trees: tuple[A_co, ...]
    """Of the tenant with all below it, and so of each above it: those that have a limit."""
    limited: tuple[A_co, ...]
    guaranteed: tuple[A_co, ...]

    @property
    def accounts(self) -> tuple[A_co, ...]:
        """Its tenant's and its queues'."""
        return (self.tenant, *self.queues)


class TenancyView(Protocol):
    """`Tenancy`."""

    @property
    def pools(self) -> Mapping[str, Pool]: ...  # noqa: D102
    @property
    def tenants(self) -> Mapping[str, Tenant]: ...  # noqa: D102
    @property
    def claims(self) -> Mapping[str, Sequence[str]]: ...  # noqa: D102
    @property
    def queues(self) -> Mapping[str, Queue]: ...  # noqa: D102
    @property
    def loans(self) -> Mapping[str, Loan]: ...  # noqa: D102
    @property
    def accounts(self) -> Mapping[AccountKey, AccountView]: ...  # noqa: D102
    @property
    def offences(self) -> Mapping[str, tuple[int, ...]]: ...  # noqa: D102
    @property
    def in_force(self) -> Mapping[AccountKey, InForce]: ...  # noqa: D102
    @property
    def edge_ms(self) -> int: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102
    @property
    def chains_version(self) -> int: ...  # noqa: D102
    @property
    def guaranteed_version(self) -> int: ...  # noqa: D102
    @property
    def covered_version(self) -> int: ...  # noqa: D102
    @property
    def guarantees(self) -> bool: ...  # noqa: D102
    @property
    def ceilings(self) -> bool: ...  # noqa: D102
    def tenant_spec(self, name: str) -> TenantSpec: ...  # noqa: D102
    def queue_spec(self, name: str) -> QueueSpec: ...  # noqa: D102
    def quota_of(self, kind: str, name: str) -> Quota: ...  # noqa: D102
    def queue_of(self, tenant: str, queue: str) -> str: ...  # noqa: D102
    def path(self, queue: str) -> tuple[str, ...]: ...  # noqa: D102
    def account(self, kind: str, name: str) -> AccountView: ...  # noqa: D102
    def chain(self, tenant: str, queue: str) -> Chain[AccountView]: ...  # noqa: D102
    def average(self, account: AccountView, now_ms: int) -> tuple[int, int]: ...  # noqa: D102
