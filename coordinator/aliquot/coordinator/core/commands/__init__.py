"""What somebody wants: the inputs of `decide`. Never journalled; ids and times come in with them.

A command names everything that `decide` can't know by itself: fresh ids, the agent's report, the launcher's wish. It is
either carried out as facts or refused with a `DomainError`. A `Command[T]` is answered with a T once it is durable.
What changes nothing is a `Query` (`queries`).
"""

from __future__ import annotations

from aliquot.coordinator.core.commands.access import (
    DisenrolNode,
    GrantRole,
    InviteNode,
    IssueToken,
    JoinNode,
    NoteTrust,
    OpenSession,
    RetireAuthority,
    RevokeRole,
    RevokeTokens,
    RotateAuthority,
)
from aliquot.coordinator.core.commands.base import Command, OnBehalf
from aliquot.coordinator.core.commands.devices import (
    QuarantineDevice,
    ReportCare,
    ReportCut,
    ReportDevice,
    ReportHit,
    ReturnDevice,
    VerifyDevice,
)
from aliquot.coordinator.core.commands.leading import (
    Admit,
    CloseBooks,
    ExpectDemand,
    Expected,
    LearnPrices,
    NoteDemand,
    RaiseEpoch,
    RetrySetAside,
    StartLeading,
    Tick,
)
from aliquot.coordinator.core.commands.leases import (
    AcknowledgeShape,
    Allocate,
    ConfirmNotice,
    ExemptLease,
    ExtendLease,
    GrantOn,
    LookAtUse,
    MemberPlace,
    ObserveUse,
    Release,
)
from aliquot.coordinator.core.commands.nodes import (
    Cordon,
    DeclareMaintenance,
    DeclareNode,
    EndMaintenance,
    NodeHeard,
    NodeSilent,
    ReconcileNode,
    RegisterNode,
    RemoveNode,
    ReportSlices,
    ReportStatus,
    SliceReport,
    WriteOff,
)
from aliquot.coordinator.core.commands.supply import DeclareSupply, ReportOrder, TakeOrders, WithdrawOrder
from aliquot.coordinator.core.commands.tenancy import (
    ANY_VERSION,
    Apply,
    CorrectUsage,
    Declared,
    Forgive,
    MoveQuotas,
    PostCredit,
    Withdraw,
)
