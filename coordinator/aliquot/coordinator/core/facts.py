"""What has happened: the only things that are journalled, and the only things that change the State.

A fact is past tense, complete and integer-only, so that replaying the journal never decides anything again. Facts are
tagged MessagePack arrays on disk; fields are only ever appended, with a default, so that an older journal still decodes
(`journal.codec` says what happens with a newer one).

Each subject has a `facts.py` of its own; `AnyFact` puts all together.
"""

from __future__ import annotations

from aliquot.coordinator.core.access.facts import Acted, RoleGranted, RoleRevoked, TokenIssued, TokensEnded
from aliquot.coordinator.core.capacity.facts import CapacityDeclared, NodeCame, NodeOrdered, NodeWent, OrderChanged
from aliquot.coordinator.core.demand.facts import DemandNoted
from aliquot.coordinator.core.elastic.facts import LeaseGrown, LeaseShrinking, ShapeAcknowledged, SlicesKept
from aliquot.coordinator.core.enrolment.facts import (
    AuthorityBegun,
    AuthorityRetired,
    AuthorityTrusted,
    InvitesForgotten,
    InviteUsed,
    NodeDisenrolled,
    NodeEnrolled,
    NodeInvited,
)
from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.health.facts import (
    CopiesMeasured,
    IncidentClosed,
    IncidentMoved,
    IncidentOpened,
    LeaseTold,
)
from aliquot.coordinator.core.holds.facts import HoldBroken, HoldCreated, HoldReleased
from aliquot.coordinator.core.leases.facts import (
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseQueued,
    LeaseReleasing,
    LeaseRequeued,
    LeasesForgotten,
    SliceActive,
    SliceFailed,
    SliceGone,
    SlicesAdopted,
    SlicesReleasing,
)
from aliquot.coordinator.core.ledger.facts import (
    BooksClosed,
    BudgetCrossed,
    CreditPosted,
    RatesApplied,
    UsageCorrected,
    UsageFolded,
    UseObserved,
)
from aliquot.coordinator.core.lending.facts import NodeLent
from aliquot.coordinator.core.maintenance.facts import MaintenanceDeclared, MaintenanceEnded, MaintenanceMoved
from aliquot.coordinator.core.mig.facts import CutOrdered, CutSettled
from aliquot.coordinator.core.nodes.facts import DeviceChanged, NodeCordoned, NodePut, NodeRemoved, NodeStateChanged
from aliquot.coordinator.core.placement.facts import PricesLearnt
from aliquot.coordinator.core.preemption.facts import LeaseReprieved, PreemptionStarted
from aliquot.coordinator.core.tenancy.facts import (
    OffencesForgotten,
    PoolApplied,
    PoolRemoved,
    QueueApplied,
    QueueRemoved,
    QuotasInForce,
    TenantApplied,
    TenantRemoved,
)
from aliquot.coordinator.core.use.facts import (
    IdleActed,
    IdleWarned,
    LeaseExempted,
    ShareLent,
    ShareRecalled,
    UseChanged,
    WarningTold,
)


class LeaderStarted(Fact, frozen=True, tag="leader"):
    """A coordinator took over, and every TTL starts again in full; or the one that leads goes on in a higher epoch."""

    leader_epoch: int


AnyFact = (
    LeaderStarted
    | NodePut
    | NodeStateChanged
    | NodeCordoned
    | NodeRemoved
    | MaintenanceDeclared
    | MaintenanceMoved
    | MaintenanceEnded
    | DeviceChanged
    | CutOrdered
    | CutSettled
    | LeaseQueued
    | LeaseGranted
    | SliceActive
    | SliceFailed
    | SliceGone
    | SlicesAdopted
    | LeaseReleasing
    | LeaseExtended
    | LeaseGrown
    | LeaseShrinking
    | SlicesKept
    | ShapeAcknowledged
    | SlicesReleasing
    | LeaseRequeued
    | LeaseEnded
    | LeasesForgotten
    | PoolApplied
    | TenantApplied
    | QueueApplied
    | PoolRemoved
    | TenantRemoved
    | QueueRemoved
    | OffencesForgotten
    | QuotasInForce
    | NodeLent
    | PreemptionStarted
    | HoldCreated
    | HoldReleased
    | HoldBroken
    | LeaseReprieved
    | RatesApplied
    | CreditPosted
    | UsageCorrected
    | UseObserved
    | BudgetCrossed
    | BooksClosed
    | UsageFolded
    | PricesLearnt
    | RoleGranted
    | RoleRevoked
    | TokenIssued
    | TokensEnded
    | Acted
    | NodeInvited
    | InviteUsed
    | InvitesForgotten
    | NodeEnrolled
    | NodeDisenrolled
    | AuthorityBegun
    | AuthorityRetired
    | AuthorityTrusted
    | IncidentOpened
    | IncidentMoved
    | IncidentClosed
    | LeaseTold
    | CopiesMeasured
    | UseChanged
    | IdleWarned
    | WarningTold
    | IdleActed
    | ShareLent
    | ShareRecalled
    | LeaseExempted
    | DemandNoted
    | CapacityDeclared
    | NodeOrdered
    | OrderChanged
    | NodeCame
    | NodeWent
)
