"""`Pool.access`: who the caller is, roles, tokens, and what was done and refused."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.client import _access as flows
from aliquot.client import access
from aliquot.client._access import ACCESS, ENROLMENT
from aliquot.client._async.calls import AsyncCalls
from aliquot.client._messages import read, write
from aliquot.client._pages import pages
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
        found = await self._run(pages(self._context, flows.PRINCIPALS, self._timeout_s))
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
        return await self._run(flows.revoke_tokens(self._context, token_ids, principal, self._timeout_s))

    async def tokens(self, principal: str = "") -> tuple[access.Token, ...]:
        """A principal's tokens; empty: all that the caller may see."""
        found = await self._run(pages(self._context, flows.TOKENS, self._timeout_s, principal=principal))
        return found.items

    async def audit(self, principal: str = "", *, since_ms: int = 0, entries_max: int = AUDIT_ENTRIES) -> access.Audit:
        """Who changed what, the latest first; of one principal, since a time."""
        return await self._run(flows.audit(self._context, principal, since_ms, entries_max, self._timeout_s))

    async def denials(self) -> tuple[access.Denial, ...]:
        """What was refused lately, the latest first. The coordinator keeps a few, in memory."""
        return tuple(read(each, access.Denial) for each in (await self._send(ACCESS["ListDenials"])).denials)

    async def bootstrap(self, *, revoke_others: bool = False) -> access.IssuedToken:
        """A new administrator's token, over the coordinator's own socket: `Pool("unix:/var/lib/aliquot/admin.sock")`.

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
        flow = flows.login(self._context, id_token, service_account_token, nonce, self._timeout_s)
        return await self._run(flow)

    async def authority(self, trusts: Sequence[bytes] = ()) -> access.Authority:
        """The pool's own certificate authority. `trusts`: SHA-256 of each certificate (in DER) that the caller trusts,
        which the coordinator puts down.
        """
        return await self._run(flows.authority(self._context, trusts, self._timeout_s))

    async def authority_use(self) -> access.AuthorityUse:
        """The pool's authority, and who has not said that it trusts its latest generation."""
        return await self._ask(access.AuthorityUse, ACCESS["ListAuthority"])

    async def rotate_authority(self) -> access.Authority:
        """Begin a generation of the pool's authority, which is trusted beside the one before it until that is retired.

        Raises `Refused` while there are two.
        """
        return await self._run(flows.exchange_authority(self._context, "RotateAuthority", self._timeout_s))

    async def retire_authority(self, *, force: bool = False) -> access.Authority:
        """Have the older of two generations trusted no more. Raises `Refused` while somebody trusts only that, unless
        `force`.
        """
        flow = flows.exchange_authority(self._context, "RetireAuthority", self._timeout_s, force=force)
        return await self._run(flow)

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
