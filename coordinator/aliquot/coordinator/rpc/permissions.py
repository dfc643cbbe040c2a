"""What each method of the contract asks for: one row a method, and one that has no row is refused to everybody.

At the door it is only known *what* is asked for, not yet for which tenant: a caller that may do none of a row's actions
anywhere is refused before its message is read. The services look at the scope once they know it.
"""

from __future__ import annotations

from typing import Final

from aliquot.coordinator.core.books.roles import Action

A = Action
_LEASES, _POOL, _ADMIN = "/aliquot.v1.LeaseService/", "/aliquot.v1.PoolService/", "/aliquot.v1.AdminService/"
_ACCESS, _AGENTS = "/aliquot.v1.AccessService/", "/aliquot.v1.AgentService/"
_ENROLMENT, _CAPACITY = "/aliquot.v1.EnrolmentService/", "/aliquot.v1.CapacityService/"

ACTIONS: Final[dict[str, tuple[Action, ...]]] = {
    _LEASES + "Allocate": (A.ALLOCATE,),
    _LEASES + "GrantOn": (A.ALLOCATE,),
    _LEASES + "AllocateBatch": (A.ALLOCATE,),
    _LEASES + "Explain": (A.READ_LEASES,),
    _LEASES + "KeepAlive": (A.HOLD_OWN,),
    _LEASES + "Release": (A.HOLD_OWN, A.END_OTHERS),
    _LEASES + "ReleaseBatch": (A.HOLD_OWN, A.END_OTHERS),
    _LEASES + "ExtendLease": (A.HOLD_OWN,),
    _LEASES + "AcknowledgeShape": (A.HOLD_OWN,),
    _LEASES + "Get": (A.READ_LEASES,),
    _LEASES + "GetTimeline": (A.READ_LEASES,),
    _LEASES + "List": (A.READ_LEASES,),
    _LEASES + "Watch": (A.READ_LEASES,),
    _LEASES + "GetUse": (A.READ_LEASES,),
    _LEASES + "ExemptLease": (A.HOLD_OWN, A.END_OTHERS),
    _LEASES + "ConfirmNotice": (A.HOLD_OWN, A.END_OTHERS),
    _POOL + "DeclareNodes": (A.OPERATE,),
    _POOL + "RemoveNode": (A.OPERATE,),
    _POOL + "GetNode": (A.READ_POOL,),
    _POOL + "ListNodes": (A.READ_POOL,),
    _POOL + "ListDevices": (A.READ_POOL,),
    _POOL + "Fits": (A.READ_POOL,),
    _POOL + "Cordon": (A.OPERATE,),
    _POOL + "Uncordon": (A.OPERATE,),
    _POOL + "Drain": (A.OPERATE,),
    _POOL + "GetStatus": (A.READ_POOL,),
    _POOL + "WatchFleet": (A.READ_POOL,),
    _POOL + "Forecast": (A.READ_POOL,),
    _POOL + "GetHealth": (A.READ_POOL,),
    _POOL + "SettleSlices": (A.OPERATE,),
    _POOL + "QuarantineDevice": (A.OPERATE,),
    _POOL + "VerifyDevice": (A.OPERATE,),
    _POOL + "ReturnDevice": (A.OPERATE,),
    _ADMIN + "Apply": (A.DECLARE, A.DECLARE_BELOW),
    _ADMIN + "Withdraw": (A.DECLARE, A.DECLARE_BELOW),
    _ADMIN + "GetTenancy": (A.READ_POOL,),
    _ADMIN + "DeclareMaintenance": (A.OPERATE,),
    _ADMIN + "EndMaintenance": (A.OPERATE,),
    _ADMIN + "ListMaintenance": (A.READ_POOL,),
    _ADMIN + "GetInvoice": (A.READ_BILLS,),
    _ADMIN + "PostCredit": (A.KEEP_BOOKS,),
    _ADMIN + "CorrectUsage": (A.KEEP_BOOKS,),
    _ADMIN + "CloseBooks": (A.KEEP_BOOKS,),
    _ADMIN + "RetrySetAside": (A.OPERATE,),
    _ADMIN + "Forgive": (A.DECLARE,),
    _ACCESS + "WhoAmI": (A.IDENTIFY,),
    _ACCESS + "GrantRole": (A.GRANT, A.GRANT_BELOW),
    _ACCESS + "RevokeRole": (A.GRANT, A.GRANT_BELOW),
    _ACCESS + "ListPrincipals": (A.GRANT, A.GRANT_BELOW, A.AUDIT),
    _ACCESS + "IssueToken": (A.IDENTIFY,),
    _ACCESS + "RevokeTokens": (A.IDENTIFY,),
    _ACCESS + "ListTokens": (A.IDENTIFY,),
    _ACCESS + "ListAudit": (A.AUDIT,),
    _ACCESS + "ListDenials": (A.AUDIT,),
    _ACCESS + "Bootstrap": (A.BOOTSTRAP,),
    _ACCESS + "GetAuthority": (A.IDENTIFY,),
    _ACCESS + "ListAuthority": (A.AUDIT,),
    _ACCESS + "RotateAuthority": (A.GRANT,),
    _ACCESS + "RetireAuthority": (A.GRANT,),
    _ENROLMENT + "InviteNode": (A.OPERATE,),
    _ENROLMENT + "DisenrolNode": (A.OPERATE,),
    _ENROLMENT + "Join": (A.JOIN,),
    _CAPACITY + "DeclareCapacity": (A.OPERATE,),
    _CAPACITY + "GetCapacity": (A.READ_POOL,),
    _CAPACITY + "TakeOrders": (A.OPERATE,),
    _CAPACITY + "ReportOrder": (A.OPERATE,),
    _CAPACITY + "WithdrawOrder": (A.OPERATE,),
    _CAPACITY + "ExpectDemand": (A.OPERATE,),
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
