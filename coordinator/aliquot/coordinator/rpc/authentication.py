"""Who a caller is, by the token in its call's metadata: looked up, never decoded or asked for elsewhere.

One SHA-256 and two look-ups, some 3 µs. What is found is what is durable: a token counts from the moment that it can't
be taken back, and no longer once its end can't be.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from aliquot.common import tokens
from aliquot.common.clock import Clock
from aliquot.coordinator.agents.lease_secrets import lease_secret
from aliquot.coordinator.core.books.access import Token
from aliquot.coordinator.core.books.roles import Action, Grant, Role, may
from aliquot.coordinator.core.values.errors import InviteUnknown
from aliquot.coordinator.errors import Unauthenticated
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.rpc.caller import Caller

_GET_ONE = "`aliquot login`, or on the coordinator's machine `aliquot access bootstrap`"


Metadata = Sequence[tuple[str, str | bytes]]


class Authenticator:
    """Finds callers. On the event loop."""

    def __init__(self, view: View, clock: Clock, pool_secret: bytes) -> None:
        self._view = view
        self._clock = clock
        self._pool_secret = pool_secret
        self._known: dict[str, Caller] = {}
        """By token id; forgotten when the token or its principal changes."""
        self._ids_of: dict[str, set[str]] = {}
        """By principal: the ids of those."""

    def changed(self, principals: frozenset[str], token_ids: frozenset[str]) -> None:
        """These are not what they were."""
        for token_id in token_ids:
            self._known.pop(token_id, None)
        for principal in principals:
            for token_id in self._ids_of.pop(principal, ()):
                self._known.pop(token_id, None)

    def find(self, metadata: Metadata) -> Caller:
        """Whose token these metadata hold. Raises Unauthenticated."""
        for key, value in metadata:
            if key == tokens.METADATA_KEY:
                return self._by_authorization(value)
        raise Unauthenticated("TOKEN_MISSING", "the call has no token, so nobody knows who asks", hint=_GET_ONE)

    def _by_authorization(self, value: str | bytes) -> Caller:
        text = value if isinstance(value, str) else ""
        if not text.startswith(tokens.SCHEME) or len(text) > tokens.CHARS_MAX:
            raise Unauthenticated("TOKEN_UNKNOWN", "the call's authorization holds no token of ours", hint=_GET_ONE)
        text = text[len(tokens.SCHEME) :]
        token_id = tokens.token_id_of(text)
        if token_id is None and (invite_id := tokens.invite_id_of(text)) is not None:
            return self._invited(invite_id, text)
        if token_id is None:
            return self._workload(text)
        token = self._view.callers.tokens.get(token_id)
        # One answer for both: whoever doesn't have a token's text learns nothing of it, not even that there is one.
        if token is None or not hmac.compare_digest(token.sha256, tokens.token_sha256(text)):
            raise Unauthenticated(
                "TOKEN_UNKNOWN",
                f"token {token_id} is not known: it was revoked, expired long ago, is of another pool, or mistyped",
                hint=_GET_ONE,
            )
        return self._in_time(token)

    def _in_time(self, token: Token) -> Caller:
        if token.expires_ms and token.expired(self._clock.now_ms()):
            raise Unauthenticated(
                "TOKEN_EXPIRED",
                f"token {token.token_id} of {token.principal} has expired",
                hint="`aliquot login` again",
            )
        return self.caller_of(token)

    def as_of_now(self, who: Caller) -> Caller:
        """The same caller with the roles that it has now. Raises Unauthenticated where its token has ended since.

        Of a lease's programs and of nodes that are invited nothing is remembered: what they ask for says whether
        the lease and the invite still count.
        """
        if not who.from_token:
            return who
        token = self._view.callers.tokens.get(who.token_id)
        if token is None:
            raise Unauthenticated("TOKEN_REVOKED", f"token {who.token_id} has ended", hint=_GET_ONE)
        return self._in_time(token)

    def may(self, text: str, action: Action) -> bool:
        """Whether a token's holder may do that of the pool at this moment. It only reads: on any thread."""
        token = self._view.callers.tokens.get(tokens.token_id_of(text) or "")
        if token is None or not hmac.compare_digest(token.sha256, tokens.token_sha256(text)):
            return False
        if token.expired(self._clock.now_ms()):
            return False
        return may(self._view.callers.grants_of(token.principal) + token.grants, action)

    def caller_with(self, token_id: str) -> Caller | None:
        """Whoever has this token now; None: it has ended."""
        token = self._view.callers.tokens.get(token_id)
        return None if token is None else self.caller_of(token)

    def caller_of(self, token: Token) -> Caller:
        """Who holds this token, and what it may do now."""
        known = self._known.get(token.token_id)
        if known is None:
            grants = self._view.callers.grants_of(token.principal) + token.grants
            known = Caller(token.principal, grants, token.token_id, token.expires_ms)
            self._known[token.token_id] = known
            self._ids_of.setdefault(token.principal, set()).add(token.token_id)
        return known

    def _invited(self, invite_id: str, text: str) -> Caller:
        """Whoever has an invite may join, and nothing else. Whether it is still good, joining says."""
        invite = self._view.books.invites.get(invite_id)
        if invite is None or not hmac.compare_digest(invite.sha256, tokens.token_sha256(text)):
            raise InviteUnknown(
                "there is no such invite in this pool, or it was over long ago",
                hint="ask an operator for another: `aliquot node invite NAME`",
            )
        return Caller(f"invite:{invite_id}", (Grant(Role.INVITED, invite.node),), invite_id)

    def _workload(self, text: str) -> Caller:
        """Whoever has a lease's own secret, while the lease lives."""
        read = tokens.read_lease_token(text)
        if read is None:
            raise Unauthenticated("TOKEN_UNKNOWN", "the call's token has no form of ours", hint=_GET_ONE)
        lease = self._view.leases.get(read.lease_id)
        right = lease_secret(self._pool_secret, read.lease_id)
        if not hmac.compare_digest(right, read.secret) or lease is None:
            raise Unauthenticated("TOKEN_UNKNOWN", "this is not the token of a lease of this pool")
        if lease.ended:
            raise Unauthenticated("TOKEN_EXPIRED", f"lease {read.lease_id} has ended, and its token with it")
        return Caller(f"lease:{read.lease_id}", (Grant(Role.WORKLOAD, read.lease_id),), lease_id=read.lease_id)
