"""`Pool.access`: who the caller is, roles, tokens, and what was done and refused."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from aliquot.client import access
from aliquot.client._access import ACCESS, AUDIT_PAGE_SIZE, ENROLMENT, PRINCIPALS, TOKENS, TRUSTS_MAX
from aliquot.client._async.calling import AsyncCalls
from aliquot.client._errors import Refused, TokenNotFound
from aliquot.client._messages import read, write
from aliquot.v1 import access_pb2

AUDIT_ENTRIES = 100


class AsyncAccess(AsyncCalls):
    """Who may do what. Each method is one call, but for lists, which are read page by page.

    Any of them raises `NotLoggedIn`, `NotPermitted` where the caller's roles don't allow it, `Unavailable` and
    `DeadlineExceeded`, and `InvalidRequest` for values out of their range.
    """

    async def whoami(self) -> access.Identity:
        """Who this program is to the coordinator, and what it may do."""
        return await self._ask(access.Identity, ACCESS["WhoAmI"])

    async def grant_role(self, principal: str, role: access.Role, *, scope: str = "") -> access.Principal:
        """Give a role on a tenant and all below it, or (no scope) on the whole pool. Nobody gives more than they have.

        A principal exists from its first role or token on. Giving a role twice changes nothing.
        """
        return await self._ask(access.Principal, ACCESS["GrantRole"], principal=principal, grant=_grant(role, scope))

    async def revoke_role(self, principal: str, role: access.Role, *, scope: str = "") -> access.Principal:
        """Take a role away; within a second, streams that need it end. Raises `Refused` for the last administrator."""
        return await self._ask(access.Principal, ACCESS["RevokeRole"], principal=principal, grant=_grant(role, scope))

    async def principals(self) -> tuple[access.Principal, ...]:
        """Everybody with a role or a token, by name."""
        found = await self._caller.pages(PRINCIPALS, self._timeout_s)
        return tuple(sorted(found.items, key=lambda principal: principal.name))

    async def issue_token(
        self, principal: str = "", *, grants: Sequence[access.RoleGrant] = (), ttl_ms: int = 0, note: str = ""
    ) -> access.IssuedToken:
        """A new token for a principal (empty: for oneself), with roles given to it in the same step.

        `ttl_ms` 0: it does not expire. The answer is the only place that has its text. Where that is lost, the call is
        repeated: the token of the first is then nobody's.
        """
        given = [_grant(each.role, each.scope) for each in grants]
        return await self._ask(
            access.IssuedToken, ACCESS["IssueToken"], principal=principal, grants=given, ttl_ms=ttl_ms, note=note
        )

    async def revoke_tokens(self, token_ids: Sequence[str] = (), *, principal: str = "") -> tuple[access.Token, ...]:
        """End these tokens, or all of a principal's; within a second, streams that were opened with them end too.

        Returns what was ended. Raises `TokenNotFound`.
        """
        try:
            return await self._revoke(token_ids, principal)
        except TokenNotFound as error:
            if not error.after_unknown:
                raise
        # An answer was lost: those that are not there any more have ended then.
        ended: list[access.Token] = []
        for token_id in token_ids:  # one by one, so that one that was never there does not keep others
            with contextlib.suppress(TokenNotFound):
                ended += await self._revoke([token_id])
        return tuple(ended)

    async def _revoke(self, token_ids: Sequence[str], principal: str = "") -> tuple[access.Token, ...]:
        answer = await self._send(ACCESS["RevokeTokens"], token_ids=token_ids, principal=principal)
        return tuple(read(each, access.Token) for each in answer.tokens)

    async def tokens(self, principal: str = "") -> tuple[access.Token, ...]:
        """A principal's tokens; empty: all that the caller may see."""
        return (await self._caller.pages(TOKENS, self._timeout_s, principal=principal)).items

    async def audit(self, principal: str = "", *, since_ms: int = 0, entries_max: int = AUDIT_ENTRIES) -> access.Audit:
        """Who changed what, the latest first; of one principal, since a time."""
        entries: list[access.AuditEntry] = []
        token, oldest_ms = "", 0
        while True:
            size = min(AUDIT_PAGE_SIZE, entries_max - len(entries))
            about = {"principal": principal, "since_ms": since_ms, "page_size": size, "page_token": token}
            answer = await self._send(ACCESS["ListAudit"], **about)
            entries += (read(each, access.AuditEntry) for each in answer.entries)
            token, oldest_ms = answer.next_page_token, answer.oldest_ms
            if not token or len(entries) >= entries_max:
                return access.Audit(tuple(entries[:entries_max]), oldest_ms)

    async def denials(self) -> tuple[access.Denial, ...]:
        """What was refused lately, the latest first. The coordinator keeps a few, in memory."""
        return tuple(read(each, access.Denial) for each in (await self._send(ACCESS["ListDenials"])).denials)

    async def bootstrap(self, *, revoke_others: bool = False) -> access.IssuedToken:
        """A new administrator's token, over the coordinator's own socket: `Pool("unix:DIR/admin.sock")`.

        `revoke_others` ends all tokens that were made this way before.
        """
        return await self._ask(access.IssuedToken, ACCESS["Bootstrap"], revoke_others=revoke_others)

    async def describe_login(self) -> access.LoginOffer:
        """Who vouches for people and pods at this pool; told to everybody, with a token or without."""
        return await self._ask(access.LoginOffer, ACCESS["DescribeLogin"])

    async def login(
        self, *, id_token: str = "", service_account_token: str = "", nonce: str = ""
    ) -> access.IssuedToken:
        """A session token for whom an OpenID provider, or Kubernetes, vouches for; it ends with what vouches for it.

        Raises `NotLoggedIn` where that does not count, and `NotPermitted` where no rule gives a role.
        """
        # A call whose answer is lost is repeated: the session of the first is then nobody's.
        vouched = {"service_account_token": service_account_token} if service_account_token else {"id_token": id_token}
        return await self._ask(access.IssuedToken, ACCESS["Login"], nonce=nonce, **vouched)

    async def authority(self, trusts: Sequence[bytes] = ()) -> access.Authority:
        """The pool's own certificate authority. `trusts`: SHA-256 of each certificate (in DER) that the caller trusts,
        which the coordinator puts down.
        """
        return await self._ask(access.Authority, ACCESS["GetAuthority"], trusts=trusts[:TRUSTS_MAX])

    async def authority_use(self) -> access.AuthorityUse:
        """The pool's authority, and who has not said that it trusts its latest generation."""
        return await self._ask(access.AuthorityUse, ACCESS["ListAuthority"])

    async def rotate_authority(self) -> access.Authority:
        """Begin a generation of the pool's authority, which is trusted beside the one before it until that is retired.

        Raises `Refused` while there are two.
        """
        return await self._exchange_authority("RotateAuthority")

    async def retire_authority(self, *, force: bool = False) -> access.Authority:
        """Have the older of two generations trusted no more. Raises `Refused` while somebody trusts only that, unless
        `force`.
        """
        return await self._exchange_authority("RetireAuthority", force=force)

    async def _exchange_authority(self, name: str, **fields: object) -> access.Authority:
        try:
            return await self._ask(access.Authority, ACCESS[name], **fields)
        except Refused as error:
            if not error.after_unknown or error.stated_reason != "AUTHORITY_UNCHANGED":
                raise
        # An answer was lost, and the first try was carried out: the next found nothing to change.
        return await self.authority()

    async def invite_node(self, node: str, *, ttl_ms: int = 0) -> access.NodeInvite:
        """Let the node of this id or name join with a key of its own, once; `ttl_ms` 0: within an hour.

        The answer is the only place that has the invite's text.
        """
        return await self._ask(access.NodeInvite, ENROLMENT["InviteNode"], node=node, ttl_ms=ttl_ms)

    async def disenrol_node(self, node: str) -> None:
        """Let a node's key count no more; its agent's session ends within a second. Raises `NodeNotFound`."""
        await self._send(ENROLMENT["DisenrolNode"], node=node)


def _grant(role: access.Role, scope: str) -> access_pb2.RoleGrant:
    return write(access.RoleGrant(role, scope), access_pb2.RoleGrant())
