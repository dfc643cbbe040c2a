"""What each method of the contract asks for; one that is in no row is refused to everybody.

At the door it is only known *what* is asked for, not yet for which tenant: a caller that may do none of a row's actions
anywhere is refused before its message is read. The services look at the scope once they know it.
"""

from __future__ import annotations

from typing import Final

from aliquot.coordinator.core.books.roles import Action

A = Action
_LEASES, _POOL, _ADMIN = "/aliquot.v1.LeaseService/", "/aliquot.v1.PoolService/", "/aliquot.v1.AdminService/"
_ACCESS, _AGENTS = "/aliquot.v1.AccessService/", "/aliquot.v1.AgentService/"
_ENROLMENT, _SUPPLY = "/aliquot.v1.EnrolmentService/", "/aliquot.v1.SupplyService/"

_ROWS: Final = (
    (_LEASES, (A.ALLOCATE,), "Allocate GrantOn AllocateBatch"),
    (_LEASES, (A.READ_LEASES,), "Explain Get GetTimeline List Watch GetUse"),
    (_LEASES, (A.HOLD_OWN,), "KeepAlive ExtendLease AcknowledgeShape"),
    (_LEASES, (A.HOLD_OWN, A.END_OTHERS), "Release ReleaseBatch ExemptLease ConfirmNotice"),
    (
        _POOL,
        (A.OPERATE,),
        "DeclareNodes RemoveNode Cordon Uncordon Drain SettleSlices QuarantineDevice VerifyDevice ReturnDevice",
    ),
    (_POOL, (A.READ_POOL,), "GetNode ListNodes ListDevices Fits GetStatus WatchFleet Forecast GetHealth"),
    (_ADMIN, (A.DECLARE, A.DECLARE_BELOW), "Apply Withdraw"),
    (_ADMIN, (A.READ_POOL,), "GetTenancy ListMaintenance"),
    (_ADMIN, (A.OPERATE,), "DeclareMaintenance EndMaintenance RetrySetAside"),
    (_ADMIN, (A.READ_BILLS,), "GetInvoice"),
    (_ADMIN, (A.KEEP_BOOKS,), "PostCredit CorrectUsage CloseBooks"),
    (_ADMIN, (A.DECLARE,), "Forgive"),
    (_ACCESS, (A.IDENTIFY,), "WhoAmI IssueToken RevokeTokens ListTokens GetAuthority"),
    (_ACCESS, (A.GRANT, A.GRANT_BELOW), "GrantRole RevokeRole"),
    (_ACCESS, (A.GRANT, A.GRANT_BELOW, A.AUDIT), "ListPrincipals"),
    (_ACCESS, (A.AUDIT,), "ListAudit ListDenials ListAuthority"),
    (_ACCESS, (A.BOOTSTRAP,), "Bootstrap"),
    (_ACCESS, (A.GRANT,), "RotateAuthority RetireAuthority"),
    (_ENROLMENT, (A.OPERATE,), "InviteNode DisenrolNode"),
    (_ENROLMENT, (A.JOIN,), "Join"),
    (_SUPPLY, (A.OPERATE,), "DeclareSupply TakeOrders ReportOrder WithdrawOrder ExpectDemand"),
    (_SUPPLY, (A.READ_POOL,), "GetSupply"),
)
"""A service, what a caller must be allowed (one of these), and the methods for which that is so."""
ACTIONS: Final[dict[str, tuple[Action, ...]]] = {
    service + method: actions for service, actions, methods in _ROWS for method in methods.split()
}
BY_THEMSELVES: Final = frozenset({_AGENTS + "Session", _ACCESS + "DescribeLogin", _ACCESS + "Login"})
"""Who calls these they find out themselves: sessions by the key that the node has enrolled or by a certificate, Login
by what vouches for the caller. How to log in is told to everybody."""
KEEPING: Final = frozenset({_LEASES + "KeepAlive", _LEASES + "AcknowledgeShape"})
"""Not counted among what one caller may call, or have open: leases would be lost for it."""
LASTING: Final = (
    KEEPING | {_LEASES + name for name in ("Allocate", "GrantOn", "Release", "Watch")} | {_POOL + "WatchFleet"}
)
"""Calls that may last: they end with the token that opened them."""
