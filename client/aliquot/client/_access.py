"""Calls about callers that are more than one message and its answer, each as a flow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aliquot.client import access
from aliquot.client._errors import Refused, TokenNotFound
from aliquot.client._flow import Context, Flow, send
from aliquot.client._messages import read
from aliquot.client._methods import methods_of
from aliquot.client._pages import Listing
from aliquot.common.fields import Reader
from aliquot.v1 import access_pb2, enrolment_pb2

ACCESS = methods_of(access_pb2.DESCRIPTOR, "AccessService")
ENROLMENT = methods_of(enrolment_pb2.DESCRIPTOR, "EnrolmentService")
AUDIT_PAGE_SIZE = 500
_TRUSTS_MAX = 16


def _pem(message: access_pb2.IssueTokenResponse | enrolment_pb2.InviteNodeResponse, _: object) -> str:
    return message.authorities_pem.decode("ascii", errors="replace")


_ISSUED = Reader(access_pb2.IssueTokenResponse, access.IssuedToken, {"ca_pem": _pem})
_INVITE = Reader(enrolment_pb2.InviteNodeResponse, access.NodeInvite, {"ca_pem": _pem})


PRINCIPALS = Listing(ACCESS["ListPrincipals"], "principals", partial(read, kind=access.Principal))
TOKENS = Listing(ACCESS["ListTokens"], "tokens", partial(read, kind=access.Token))


def revoke_tokens(
    context: Context, token_ids: Sequence[str], principal: str, timeout_s: float
) -> Flow[tuple[access.Token, ...]]:
    """End tokens. Where an answer was lost, those that are not there any more have ended then."""
    revoke = ACCESS["RevokeTokens"]
    try:
        answer = yield from send(context, revoke, timeout_s, token_ids=token_ids, principal=principal)
    except TokenNotFound as error:
        if not error.after_unknown:
            raise
    else:
        return tuple(read(each, access.Token) for each in answer.tokens)
    ended: list[access.Token] = []
    for token_id in token_ids:  # one by one, so that one that was never there does not keep others
        try:
            answer = yield from send(context, revoke, timeout_s, token_ids=[token_id])
        except TokenNotFound:
            continue
        ended += (read(each, access.Token) for each in answer.tokens)
    return tuple(ended)


def audit(context: Context, principal: str, since_ms: int, entries_max: int, timeout_s: float) -> Flow[access.Audit]:
    """What was changed, page by page until there is no more or enough."""
    entries: list[access.AuditEntry] = []
    token, oldest_ms = "", 0
    while True:
        size = min(AUDIT_PAGE_SIZE, entries_max - len(entries))
        about = {"principal": principal, "since_ms": since_ms, "page_size": size, "page_token": token}
        answer = yield from send(context, ACCESS["ListAudit"], timeout_s, **about)
        entries += (read(each, access.AuditEntry) for each in answer.entries)
        token, oldest_ms = answer.next_page_token, answer.oldest_ms
        if not token or len(entries) >= entries_max:
            return access.Audit(tuple(entries[:entries_max]), oldest_ms)


def login(
    context: Context, id_token: str, service_account_token: str, nonce: str, timeout_s: float
) -> Flow[access.IssuedToken]:
    """Open a session. A call whose answer is lost is repeated: the session of the first is then nobody's."""
    vouched = {"service_account_token": service_account_token} if service_account_token else {"id_token": id_token}
    answer = yield from send(context, ACCESS["Login"], timeout_s, nonce=nonce, **vouched)
    return read(answer, access.IssuedToken)


def authority(context: Context, trusts: Sequence[bytes], timeout_s: float) -> Flow[access.Authority]:
    """Whom to trust; `trusts`: SHA-256 of each certificate that the caller trusts."""
    answer = yield from send(context, ACCESS["GetAuthority"], timeout_s, trusts=trusts[:_TRUSTS_MAX])
    return read(answer, access.Authority)


def exchange_authority(context: Context, name: str, timeout_s: float, **fields: object) -> Flow[access.Authority]:
    """Begin a generation, or end the older of two. Where an answer was lost and the first try was carried out, the next
    finds nothing to change.
    """
    try:
        return read((yield from send(context, ACCESS[name], timeout_s, **fields)), access.Authority)
    except Refused as error:
        if not error.after_unknown or error.stated_reason != "AUTHORITY_UNCHANGED":
            raise
    return (yield from authority(context, (), timeout_s))
