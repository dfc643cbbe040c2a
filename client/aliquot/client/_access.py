"""The calls about callers, and what differs from their messages."""

from __future__ import annotations

from functools import partial

from aliquot.client import access
from aliquot.client._messages import read
from aliquot.client._methods import methods_of
from aliquot.client._pages import Listing
from aliquot.common.fields import Reader
from aliquot.v1 import access_pb2, enrolment_pb2

ACCESS = methods_of(access_pb2.DESCRIPTOR, "AccessService")
ENROLMENT = methods_of(enrolment_pb2.DESCRIPTOR, "EnrolmentService")
AUDIT_PAGE_SIZE = 500
TRUSTS_MAX = 16


def _pem(message: access_pb2.IssueTokenResponse | enrolment_pb2.InviteNodeResponse, _: object) -> str:
    return message.authorities_pem.decode("ascii", errors="replace")


_ISSUED = Reader(access_pb2.IssueTokenResponse, access.IssuedToken, {"ca_pem": _pem})
_INVITE = Reader(enrolment_pb2.InviteNodeResponse, access.NodeInvite, {"ca_pem": _pem})


PRINCIPALS = Listing(ACCESS["ListPrincipals"], "principals", partial(read, kind=access.Principal))
TOKENS = Listing(ACCESS["ListTokens"], "tokens", partial(read, kind=access.Token))
