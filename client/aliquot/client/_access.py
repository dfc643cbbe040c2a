"""The calls about callers, each as a flow."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.client import access
from aliquot.client._administration import ask
from aliquot.client._errors import Refused, TokenNotFound
from aliquot.client._flow import Context, Flow, call
from aliquot.client._messages import read
from aliquot.client._methods import Answer, Method, Request
from aliquot.v1 import access_pb2, enrolment_pb2

AUDIT_PAGE_SIZE = 500
_TRUSTS_MAX = 16


def _access(name: str, request: type[Request], answer: type[Answer]) -> Method[Request, Answer]:
    return Method(f"/aliquot.v1.AccessService/{name}", request, answer)


def _enrolment(name: str, request: type[Request], answer: type[Answer]) -> Method[Request, Answer]:
    return Method(f"/aliquot.v1.EnrolmentService/{name}", request, answer)


_WHO_AM_I = _access("WhoAmI", access_pb2.WhoAmIRequest, access_pb2.Identity)
_GRANT_ROLE = _access("GrantRole", access_pb2.GrantRoleRequest, access_pb2.Principal)
_REVOKE_ROLE = _access("RevokeRole", access_pb2.RevokeRoleRequest, access_pb2.Principal)
_PRINCIPALS = _access("ListPrincipals", access_pb2.ListPrincipalsRequest, access_pb2.ListPrincipalsResponse)
_ISSUE_TOKEN = _access("IssueToken", access_pb2.IssueTokenRequest, access_pb2.IssueTokenResponse)
_REVOKE_TOKENS = _access("RevokeTokens", access_pb2.RevokeTokensRequest, access_pb2.RevokeTokensResponse)
_TOKENS = _access("ListTokens", access_pb2.ListTokensRequest, access_pb2.ListTokensResponse)
_AUDIT = _access("ListAudit", access_pb2.ListAuditRequest, access_pb2.ListAuditResponse)
_DENIALS = _access("ListDenials", access_pb2.ListDenialsRequest, access_pb2.ListDenialsResponse)
_INVITE_NODE = _enrolment("InviteNode", enrolment_pb2.InviteNodeRequest, enrolment_pb2.InviteNodeResponse)
_DISENROL_NODE = _enrolment("DisenrolNode", enrolment_pb2.DisenrolNodeRequest, enrolment_pb2.DisenrolNodeResponse)
_DESCRIBE_LOGIN = _access("DescribeLogin", access_pb2.DescribeLoginRequest, access_pb2.DescribeLoginResponse)
_LOGIN = _access("Login", access_pb2.LoginRequest, access_pb2.IssueTokenResponse)
_GET_AUTHORITY = _access("GetAuthority", access_pb2.GetAuthorityRequest, access_pb2.Authority)
_LIST_AUTHORITY = _access("ListAuthority", access_pb2.ListAuthorityRequest, access_pb2.ListAuthorityResponse)
_ROTATE_AUTHORITY = _access("RotateAuthority", access_pb2.RotateAuthorityRequest, access_pb2.Authority)
_RETIRE_AUTHORITY = _access("RetireAuthority", access_pb2.RetireAuthorityRequest, access_pb2.Authority)
_BOOTSTRAP = _access("Bootstrap", access_pb2.BootstrapRequest, access_pb2.IssueTokenResponse)


def whoami(context: Context, timeout_s: float) -> Flow[access.Identity]:
    """Who the caller is."""
    return ask(context, _WHO_AM_I, access_pb2.WhoAmIRequest(), access.Identity, timeout_s)


def grant_role(context: Context, principal: str, grant: access.RoleGrant, timeout_s: float) -> Flow[access.Principal]:
    """Give a role."""
    request = access_pb2.GrantRoleRequest(principal=principal, grant=_to_proto(grant))
    return ask(context, _GRANT_ROLE, request, access.Principal, timeout_s)


def revoke_role(context: Context, principal: str, grant: access.RoleGrant, timeout_s: float) -> Flow[access.Principal]:
    """Take a role away."""
    request = access_pb2.RevokeRoleRequest(principal=principal, grant=_to_proto(grant))
    return ask(context, _REVOKE_ROLE, request, access.Principal, timeout_s)


def principals(context: Context, timeout_s: float) -> Flow[tuple[access.Principal, ...]]:
    """Everybody that the caller may see, page by page, by name."""
    found: list[access.Principal] = []
    token = ""
    while True:
        request = access_pb2.ListPrincipalsRequest(page_token=token)
        answer = yield from call(context, _PRINCIPALS, request, timeout_s)
        found += (read(each, access.Principal) for each in answer.principals)
        token = answer.next_page_token
        if not token:
            return tuple(sorted(found, key=lambda principal: principal.name))


def issue_token(
    context: Context, principal: str, grants: Sequence[access.RoleGrant], ttl_ms: int, note: str, timeout_s: float
) -> Flow[access.IssuedToken]:
    """Make a token. A call whose answer is lost is repeated: the token of the first is then nobody's."""
    request = access_pb2.IssueTokenRequest(
        principal=principal, ttl_ms=ttl_ms, note=note, grants=[_to_proto(grant) for grant in grants]
    )
    return _issued((yield from call(context, _ISSUE_TOKEN, request, timeout_s)))


def revoke_tokens(
    context: Context, token_ids: Sequence[str], principal: str, timeout_s: float
) -> Flow[tuple[access.Token, ...]]:
    """End tokens. Where an answer was lost, those that are not there any more have ended then."""
    request = access_pb2.RevokeTokensRequest(token_ids=token_ids, principal=principal)
    try:
        answer = yield from call(context, _REVOKE_TOKENS, request, timeout_s)
    except TokenNotFound as error:
        if not error.after_unknown:
            raise
    else:
        return tuple(read(each, access.Token) for each in answer.tokens)
    ended: list[access.Token] = []
    for token_id in token_ids:  # one by one, so that one that was never there does not keep others
        try:
            alone = access_pb2.RevokeTokensRequest(token_ids=[token_id])
            answer = yield from call(context, _REVOKE_TOKENS, alone, timeout_s)
        except TokenNotFound:
            continue
        ended += (read(each, access.Token) for each in answer.tokens)
    return tuple(ended)


def tokens(context: Context, principal: str, timeout_s: float) -> Flow[tuple[access.Token, ...]]:
    """Those that the caller may see, page by page, in the order in which they were made."""
    found: list[access.Token] = []
    token = ""
    while True:
        request = access_pb2.ListTokensRequest(principal=principal, page_token=token)
        answer = yield from call(context, _TOKENS, request, timeout_s)
        found += (read(each, access.Token) for each in answer.tokens)
        token = answer.next_page_token
        if not token:
            return tuple(found)


def audit(context: Context, principal: str, since_ms: int, entries_max: int, timeout_s: float) -> Flow[access.Audit]:
    """What was changed, page by page until there is no more or enough."""
    entries: list[access.AuditEntry] = []
    token, oldest_ms = "", 0
    while True:
        request = access_pb2.ListAuditRequest(
            principal=principal,
            since_ms=since_ms,
            page_size=min(AUDIT_PAGE_SIZE, entries_max - len(entries)),
            page_token=token,
        )
        answer = yield from call(context, _AUDIT, request, timeout_s)
        entries += (read(each, access.AuditEntry) for each in answer.entries)
        token, oldest_ms = answer.next_page_token, answer.oldest_ms
        if not token or len(entries) >= entries_max:
            return access.Audit(tuple(entries[:entries_max]), oldest_ms)


def denials(context: Context, timeout_s: float) -> Flow[tuple[access.Denial, ...]]:
    """What was refused."""
    answer = yield from call(context, _DENIALS, access_pb2.ListDenialsRequest(), timeout_s)
    return tuple(read(each, access.Denial) for each in answer.denials)


def bootstrap(context: Context, timeout_s: float, *, revoke_others: bool) -> Flow[access.IssuedToken]:
    """A new administrator's token."""
    request = access_pb2.BootstrapRequest(revoke_others=revoke_others)
    return _issued((yield from call(context, _BOOTSTRAP, request, timeout_s)))


def describe_login(context: Context, timeout_s: float) -> Flow[access.LoginOffer]:
    """How to log in."""
    return ask(context, _DESCRIBE_LOGIN, access_pb2.DescribeLoginRequest(), access.LoginOffer, timeout_s)


def login(
    context: Context, id_token: str, service_account_token: str, nonce: str, timeout_s: float
) -> Flow[access.IssuedToken]:
    """Open a session. A call whose answer is lost is repeated: the session of the first is then nobody's."""
    request = access_pb2.LoginRequest(nonce=nonce)
    if service_account_token:
        request.service_account_token = service_account_token
    else:
        request.id_token = id_token
    return _issued((yield from call(context, _LOGIN, request, timeout_s)))


def _issued(answer: access_pb2.IssueTokenResponse) -> access.IssuedToken:
    ca_pem = answer.authorities_pem.decode("ascii", errors="replace")
    return access.IssuedToken(answer.token, read(answer.issued, access.Token), tuple(answer.addresses), ca_pem)


def authority(context: Context, trusts: Sequence[bytes], timeout_s: float) -> Flow[access.Authority]:
    """Whom to trust; `trusts`: SHA-256 of each certificate that the caller trusts."""
    request = access_pb2.GetAuthorityRequest(trusts=trusts[:_TRUSTS_MAX])
    return ask(context, _GET_AUTHORITY, request, access.Authority, timeout_s)


def authority_use(context: Context, timeout_s: float) -> Flow[access.AuthorityUse]:
    """Who trusts what."""
    return ask(context, _LIST_AUTHORITY, access_pb2.ListAuthorityRequest(), access.AuthorityUse, timeout_s)


def rotate_authority(context: Context, timeout_s: float) -> Flow[access.Authority]:
    """Begin a generation. Where an answer was lost, the next try is refused if the first was carried out."""
    try:
        return (
            yield from ask(context, _ROTATE_AUTHORITY, access_pb2.RotateAuthorityRequest(), access.Authority, timeout_s)
        )
    except Refused as error:
        if not error.after_unknown:
            raise
    return (yield from authority(context, (), timeout_s))


def retire_authority(context: Context, timeout_s: float, *, force: bool) -> Flow[access.Authority]:
    """End the older of two generations. As with `rotate_authority`, for an answer that was lost."""
    request = access_pb2.RetireAuthorityRequest(force=force)
    try:
        return (yield from ask(context, _RETIRE_AUTHORITY, request, access.Authority, timeout_s))
    except Refused as error:
        if not error.after_unknown or error.reason != "AUTHORITY_UNCHANGED":
            raise
    return (yield from authority(context, (), timeout_s))


def invite_node(context: Context, node: str, ttl_ms: int, timeout_s: float) -> Flow[access.NodeInvite]:
    """Let a node join. A call whose answer is lost is repeated: the invite of the first is then nobody's."""
    request = enrolment_pb2.InviteNodeRequest(node=node, ttl_ms=ttl_ms)
    answer = yield from call(context, _INVITE_NODE, request, timeout_s)
    ca_pem = answer.authorities_pem.decode("ascii", errors="replace")
    return access.NodeInvite(answer.invite, answer.node, answer.expires_ms, tuple(answer.addresses), ca_pem)


def disenrol_node(context: Context, node: str, timeout_s: float) -> Flow[None]:
    """Let a node's key count no more."""
    yield from call(context, _DISENROL_NODE, enrolment_pb2.DisenrolNodeRequest(node=node), timeout_s)


def _to_proto(grant: access.RoleGrant) -> access_pb2.RoleGrant:
    role = "ROLE_UNSPECIFIED" if grant.role is access.Role.UNSPECIFIED else grant.role.value
    return access_pb2.RoleGrant(role=access_pb2.Role.Value(role), scope=grant.scope)
