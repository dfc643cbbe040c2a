"""AccessService: roles, tokens, and the record of who did what. Decisions are the core's; what is read is durable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeVar

from aliquot.common import limits, names, tokens
from aliquot.common.errors import AliquotError, InvalidFieldError
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.access import FIRST_ADMIN, NOTE_CHARS_MAX, Principal, Token
from aliquot.coordinator.core.books.enrolment import SALT_BYTES, Invite
from aliquot.coordinator.core.books.roles import LEAST, Action, Grant, Role, may_give
from aliquot.coordinator.core.deciding.enrolment import behind
from aliquot.coordinator.logins.config import Vouched
from aliquot.coordinator.logins.logins import Logins
from aliquot.coordinator.rpc.caller import Caller, caller, on_behalf
from aliquot.coordinator.rpc.service import Introduction, Led, Service
from aliquot.coordinator.wire import access as messages
from aliquot.coordinator.wire.calls import page_after, page_size, this_call, unary
from aliquot.v1 import access_pb2 as pb
from aliquot.v1 import access_pb2_grpc

Listed = TypeVar("Listed")
_SCANNED_PER_PAGE = 5_000
_TTL_MS_MAX = 10 * 366 * 86_400_000
_TRUSTS_MAX = 16
_BEHIND_MAX = 1_000
SOCKET_NOTE = "made over the coordinator's own socket"
_JOINING_MS = 60_000
"""How long a node may take from Kubernetes' word to its key."""


class AccessService(Service, access_pb2_grpc.AccessServiceServicer):
    """See the module's docstring."""

    def __init__(self, led: Led, pool: Introduction, logins: Logins) -> None:
        super().__init__(led)
        self._entropy = led.entropy
        self._pool = pool
        self._logins = logins

    @unary
    async def WhoAmI(self, request: pb.WhoAmIRequest) -> pb.Identity:
        """The caller, as it is known here."""
        who = caller()
        return pb.Identity(
            principal=who.principal,
            grants=map(messages.grant_message, who.grants) if not who.lease_id else (),
            token_id=who.token_id,
            expires_ms=who.expires_ms,
            lease_id=who.lease_id,
            pool_id=self._pool.pool_id,
            coordinators=self._pool.coordinators(),
        )

    # -- roles

    @unary
    async def GrantRole(self, request: pb.GrantRoleRequest) -> pb.Principal:
        """Give a role; the principal as it is then."""
        grant = messages.read_grant(request.grant, "grant")
        command = c.GrantRole(caller().actor(), request.principal, grant)
        await self._writer.submit(on_behalf(f"{request.principal}: {grant}", command))
        return self._principal(request.principal)

    @unary
    async def RevokeRole(self, request: pb.RevokeRoleRequest) -> pb.Principal:
        """Take a role; the principal as it is then."""
        grant = messages.read_grant(request.grant, "grant")
        command = c.RevokeRole(caller().actor(), request.principal, grant)
        await self._writer.submit(on_behalf(f"{request.principal[:128]}: {grant}", command))
        return self._principal(request.principal)

    def _principal(self, name: str) -> pb.Principal:
        callers = self._view.callers
        known = callers.principals.get(name, Principal(name))
        return messages.principal_message(known, len(callers.tokens_of(name)))

    @unary
    async def ListPrincipals(self, request: pb.ListPrincipalsRequest) -> pb.ListPrincipalsResponse:
        """Those whose roles the caller could give, or all for those who read the record."""
        who, callers = caller(), self._view.callers
        all_of_them = who.may(Action.AUDIT)
        page, following = _page(callers.principals.values(), request.page_size, request.page_token)
        return pb.ListPrincipalsResponse(
            principals=[
                messages.principal_message(principal, len(callers.tokens_of(principal.name)))
                for principal in page
                if all_of_them or _manages(who, callers.grants_with_sessions(principal.name))
            ],
            next_page_token=following,
        )

    # -- tokens

    @unary
    async def IssueToken(self, request: pb.IssueTokenRequest) -> pb.IssueTokenResponse:
        """A token, whose text is told once."""
        who = caller()
        grants = tuple(messages.read_grant(grant, f"grants[{i}]") for i, grant in enumerate(request.grants))
        expires_ms = self._expiry_ms(request.ttl_ms)
        return await self._issue(request.principal or who.principal, expires_ms, request.note, grants)

    async def _issue(
        self, principal: str, expires_ms: int, note: str, grants: tuple[Grant, ...]
    ) -> pb.IssueTokenResponse:
        token, text = self._make(principal, expires_ms, names.validate_text(note, "note", NOTE_CHARS_MAX))
        command = c.IssueToken(caller().actor(), token, grants)
        issued = await self._writer.submit(on_behalf(f"{principal[:128]}: token {token.token_id}", command))
        return await self._told(issued, text)

    def _make(
        self, principal: str, expires_ms: int, note: str = "", grants: tuple[Grant, ...] = ()
    ) -> tuple[Token, str]:
        """A new token, and its text."""
        token_id, text = tokens.make_token(self._entropy(tokens.ENTROPY_BYTES))
        sha256 = tokens.token_sha256(text)
        return Token(token_id, sha256, principal, 0, expires_ms, note, grants=grants), text

    async def _told(self, issued: Token, text: str) -> pb.IssueTokenResponse:
        return pb.IssueTokenResponse(
            token=text,
            issued=messages.token_message(issued),
            addresses=await self._pool.addresses(),
            authorities_pem=self._pool.authorities(),
        )

    def _expiry_ms(self, ttl_ms: int) -> int:
        if ttl_ms > _TTL_MS_MAX:
            raise InvalidFieldError("ttl_ms", f"{ttl_ms} ms; at most ten years", hint="0: it does not expire")
        return self._clock.now_ms() + ttl_ms if ttl_ms else 0

    @unary
    async def RevokeTokens(self, request: pb.RevokeTokensRequest) -> pb.RevokeTokensResponse:
        """End tokens, and what was opened with them."""
        if len(request.token_ids) > limits.MAX_BATCH_ITEMS:
            raise InvalidFieldError("token_ids", f"{len(request.token_ids)}; at most {limits.MAX_BATCH_ITEMS} at once")
        command = c.RevokeTokens(caller().actor(), tuple(request.token_ids), request.principal)
        subject = request.principal[:128] or ", ".join(request.token_ids[:3])
        ended = await self._writer.submit(on_behalf(subject, command))
        return pb.RevokeTokensResponse(tokens=map(messages.token_message, ended))

    @unary
    async def ListTokens(self, request: pb.ListTokensRequest) -> pb.ListTokensResponse:
        """The caller's own, and those that it could end."""
        who, callers = caller(), self._view.callers
        of_whom = callers.tokens_of(request.principal) if request.principal else callers.tokens.values()
        page, following = _page(of_whom, request.page_size, request.page_token)
        return pb.ListTokensResponse(
            tokens=[
                messages.token_message(token)
                for token in page
                if token.principal == who.principal or _manages(who, callers.grants_of(token.principal) + token.grants)
            ],
            next_page_token=following,
        )

    # -- those whom others vouch for

    @unary
    async def DescribeLogin(self, request: pb.DescribeLoginRequest) -> pb.DescribeLoginResponse:
        """How people log in here; told to everybody."""
        return self._logins.describe()

    @unary
    async def Login(self, request: pb.LoginRequest) -> pb.IssueTokenResponse:
        """A session; told once it is durable, so that no failover takes it back."""
        try:
            if request.joins:
                return await self._invited(await self._logins.node_of(request))
            vouched = await self._logins.vouch(request)
            token, text = self._make(vouched.principal, vouched.expires_ms, grants=vouched.grants)
            by = Caller(vouched.by).actor()
            subject = names.plain_text(f"{vouched.principal[:128]}: session {token.token_id}", 256)
            issued = await self._writer.submit(c.OnBehalf(by, subject, c.OpenSession(by, token)))
        except AliquotError as error:
            self.metrics.denials.note("", this_call().context.peer(), "Login", error.reason, error.message)
            raise
        return await self._told(issued, text)

    async def _invited(self, vouched: Vouched) -> pb.IssueTokenResponse:
        """An invite as an operator would make it, for the one node that Kubernetes names."""
        invite_id, text = tokens.make_invite(self._entropy(tokens.ENTROPY_BYTES))
        wanted = Invite(invite_id, tokens.token_sha256(text), vouched.node, 0, 0, by=vouched.principal)
        command = c.InviteNode(wanted, _JOINING_MS)
        subject = names.plain_text(vouched.node, 256)
        await self._writer.submit(c.OnBehalf(Caller(vouched.by).actor(), subject, command))
        return pb.IssueTokenResponse(token=text)

    # -- the pool's own authority

    @unary
    async def GetAuthority(self, request: pb.GetAuthorityRequest) -> pb.Authority:
        """Whom to trust. What the holder of a token says that it trusts is put down."""
        if len(request.trusts) > _TRUSTS_MAX:
            raise InvalidFieldError("trusts", f"{len(request.trusts)}; at most {_TRUSTS_MAX}")
        who, number = caller(), self._pool.authority().known_by(request.trusts)
        token = self._view.callers.tokens.get(who.token_id) if who.from_token else None
        if token is not None and number and token.generation != number:
            await self._writer.submit(c.NoteTrust(number, token_id=token.token_id))
        return self._authority_message()

    @unary
    async def ListAuthority(self, request: pb.ListAuthorityRequest) -> pb.ListAuthorityResponse:
        """Who has not said that it trusts the latest generation."""
        size = page_size(request.page_size, _BEHIND_MAX, _BEHIND_MAX)
        answer = pb.ListAuthorityResponse(authority=self._authority_message())
        view = self._view
        tokens = view.callers.tokens.values() if answer.authority.shown else ()
        for each in behind(view.books.enrolled.values(), tokens, view.books.newest, self._clock.now_ms()):
            answer.behind_total += 1
            if len(answer.behind) < size:
                answer.behind.append(messages.behind_message(each))
        return answer

    @unary
    async def RotateAuthority(self, request: pb.RotateAuthorityRequest) -> pb.Authority:
        """Begin a generation."""
        command = c.RotateAuthority(self._entropy(SALT_BYTES), caller().principal)
        await self._writer.submit(on_behalf("the pool's authority", command))
        return self._authority_message()

    @unary
    async def RetireAuthority(self, request: pb.RetireAuthorityRequest) -> pb.Authority:
        """End the older of two generations."""
        command = c.RetireAuthority(force=request.force, callers=bool(self._pool.authorities()))
        await self._writer.submit(on_behalf("the pool's authority", command))
        return self._authority_message()

    def _authority_message(self) -> pb.Authority:
        shown, coordinators = bool(self._pool.authorities()), self._pool.coordinators()
        return messages.authority_message(
            self._pool.authority(), self._view.books.generations, shown=shown, coordinators=coordinators
        )

    # -- the record

    @unary
    async def ListAudit(self, request: pb.ListAuditRequest) -> pb.ListAuditResponse:
        """What was changed by whom, the latest first."""
        size = page_size(request.page_size, limits.DEFAULT_PAGE_SIZE, limits.MAX_PAGE_SIZE)
        before = page_after(request.page_token, "p")
        response = pb.ListAuditResponse()
        entries = self._view.callers.audit
        response.oldest_ms = next((entry.at_ms for entry in entries), 0)
        last = 0
        for entry in reversed(entries):
            if before and entry.number >= before:
                continue
            if entry.at_ms < request.since_ms:
                break
            if len(response.entries) == size:
                response.next_page_token = f"p{last}"
                break
            last = entry.number
            if not request.principal or entry.principal == request.principal:
                response.entries.append(messages.audit_message(entry))
        return response

    @unary
    async def ListDenials(self, request: pb.ListDenialsRequest) -> pb.ListDenialsResponse:
        """What was refused lately, the latest first."""
        return pb.ListDenialsResponse(denials=map(messages.denial_message, reversed(self.metrics.denials.latest)))

    # -- the way back in

    @unary
    async def Bootstrap(self, request: pb.BootstrapRequest) -> pb.IssueTokenResponse:
        """A new administrator's token; only the coordinator's own socket lets anybody call this."""
        if request.revoke_others:
            ids = tuple(token.token_id for token in self._view.callers.tokens_of(FIRST_ADMIN))
            command = c.RevokeTokens(caller().actor(), ids)
            await self._writer.submit(on_behalf(f"tokens of {FIRST_ADMIN}", command))
        return await self._issue(FIRST_ADMIN, 0, SOCKET_NOTE, (Grant(Role.ADMIN),))


def _manages(who: Caller, grants: Sequence[Grant]) -> bool:
    """Whether it could have given all of these."""
    return all(may_give(who.grants, grant) for grant in grants or (LEAST,))


def _page(records: Iterable[Listed], asked: int, token: str) -> tuple[list[Listed], str]:
    """A page of records in the order in which they came, before any filter; and the token of the next one."""
    size = min(asked or _SCANNED_PER_PAGE, _SCANNED_PER_PAGE)
    offset = page_after(token, "p")
    page = list(islice(records, offset, offset + size + 1))
    return page[:size], f"p{offset + size}" if len(page) > size else ""
