"""Mistakes about who may what: checks that are skipped, tokens and roles that live on, redaction, agents' keys."""

from __future__ import annotations

from typing import Any

import msgspec

from aliquot.coordinator.agents.proving import Prover
from aliquot.coordinator.core.books.access import SESSION_MS_MAX, Token
from aliquot.coordinator.core.deciding import access as giving
from aliquot.coordinator.rpc import lease_service
from aliquot.coordinator.rpc.authentication import Authenticator
from aliquot.coordinator.rpc.caller import Caller
from aliquot.coordinator.rpc.lasting import LastingCalls
from aliquot.coordinator.wire.leases import lease_message
from tests.simulation.mutant import Put, decide_by, mutant


@mutant("tenant not looked at", "who may do something somewhere may do it for every tenant")
def _anywhere(put: Put) -> None:
    put(Caller, "must", lambda self, action, scope="": None)


@mutant("wrong tenant looked at", "a role is looked for on the tenant of the caller, not on that of the request")
def _own_tenant(put: Put) -> None:
    original = Caller.must

    def must(self: Any, action: Any, scope: str = "") -> None:
        original(self, action, self.grants[0].scope if self.grants else scope)

    put(Caller, "must", must)


@mutant("everybody's leases", "who asked for a lease is not looked at when somebody ends it or keeps it alive")
def _everybodys(put: Put) -> None:
    put(Caller, "must_hold", lambda self, lease, others: None)


@mutant("token outlives its revocation", "whose token it is, is remembered by its text, also when it has been revoked")
def _remembered(put: Put) -> None:
    original = Authenticator._by_authorization
    known: dict[Any, Any] = {}

    def by_authorization(self: Any, value: Any) -> Any:
        if (id(self), value) not in known:
            known[id(self), value] = original(self, value)
        return known[id(self), value]

    put(Authenticator, "_by_authorization", by_authorization)


@mutant("role outlives its revocation", "what a caller may is remembered as it was when it came first")
def _old_roles(put: Put) -> None:
    put(Authenticator, "changed", lambda self, principals, token_ids: None)


@mutant("stream outlives its token", "streams go on when the token that has opened them is revoked")
def _endless(put: Put) -> None:
    put(LastingCalls, "changed", lambda self, still, token_ids, names: None)


@mutant("stream outlives its time", "streams go on when the token that has opened them expires")
def _unswept(put: Put) -> None:
    put(LastingCalls, "sweep", lambda self, now_ms: None)


@mutant("tokens never expire", "when a token expires is not looked at")
def _for_ever(put: Put) -> None:
    put(Token, "expired", lambda self, now_ms: False)


@mutant("everybody gives", "who gives a role or a token may give more than they have")
def _generous(put: Put) -> None:
    put(giving, "_may_give", lambda state, by, grant, lasting=False: True)


@mutant("session outlives its voucher", "a session lasts for its twelve hours, whenever what vouches for it ends")
def _long_session(put: Put) -> None:
    def open_session(state: Any, command: Any, now_ms: int) -> Any:
        token = msgspec.structs.replace(command.token, expires_ms=now_ms + SESSION_MS_MAX)
        return giving.open_session(state, msgspec.structs.replace(command, token=token), now_ms)

    decide_by(put, "OpenSession", open_session)


@mutant("redaction forgotten", "a lease of another tenant is shown as it is")
def _shown(put: Put) -> None:
    put(lease_service, "redacted", lambda lease, view: lease_message(lease, view, None))


@mutant("filter forgotten", "lists and streams hold the leases of all tenants")
def _all_of_them(put: Put) -> None:
    put(Caller, "sees_all", property(lambda self: True))


@mutant(
    "any node's key",
    "an agent is believed that has the key of another node",
    kinds=("node.impostor",),
)
def _any_key(put: Put) -> None:
    put(Prover, "require", lambda self, node_id, key_sha256: None)


@mutant("any node at all", "an agent is believed that has never joined")
def _any_node(put: Put) -> None:
    async def prove(self: Prover, hello: Any, context: Any) -> bytes:
        return b""

    put(Prover, "prove", prove)
    put(Prover, "require", lambda self, node_id, key_sha256: None)
