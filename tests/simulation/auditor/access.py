"""Callers: nobody does or hears what it may not, nobody who may is turned away, and what a token opened ends with it.

Only calls to the coordinator that leads are judged; one that was deposed may still go by what was so before.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aliquot.v1 import access_pb2, admin_pb2, leases_pb2
from tests.simulation.auditor.roles import (
    ASK,
    END_OTHERS,
    FAR,
    ITSELF,
    KEEP_OTHERS,
    LOOK,
    OFFICE,
    OPERATE,
    READ,
    WORKLOAD,
    Held,
    Need,
    Roles,
    covers,
)
from tests.simulation.sim.calls import Call, Status
from tests.simulation.sim.loop import US_PER_MS, US_PER_S, Process, current
from tests.simulation.sim.people import TENANTS
from tests.simulation.sim.server import KEEP_ALIVE, WATCH
from tests.simulation.sim.vouching import ISSUER, read_voucher

if TYPE_CHECKING:
    from tests.simulation.auditor.auditor import Auditor
    from tests.simulation.sim.network import Connection
    from tests.simulation.sim.world import World

ENDS_WITHIN_US = US_PER_S
"""A stream, after its token or a role of its caller has ended."""
_LOOKS = 4
"""...is looked at so often until then: who stands still meanwhile has as long again."""
_PAST_US = 60 * US_PER_S
"""What was asked may be decided so much later, when a disk stands still."""
SESSION_MS_MAX = 12 * 3_600_000
"""What a session lasts at most."""
_OPERATIONS = frozenset(
    {
        *("DeclareNodes", "RemoveNode", "Cordon", "Uncordon", "Drain"),
        *("DeclareMaintenance", "EndMaintenance", "InviteNode", "DisenrolNode"),
    }
)
_ADMINISTRATION = frozenset({"Apply", "Withdraw", "PostCredit", "CorrectUsage", "CloseBooks"})
_TENANT = re.compile(rb"(?<![A-Za-z0-9_.-])(?:" + "|".join(sorted(TENANTS, reverse=True)).encode() + rb")(?![a-z])")
_ASKS = ("Allocate", "GrantOn")
_READS: dict[str, Any] = {
    "Allocate": leases_pb2.AllocateRequest,
    "GrantOn": leases_pb2.GrantOnRequest,
    "Explain": leases_pb2.ExplainRequest,
    "Get": leases_pb2.GetRequest,
    "List": leases_pb2.ListRequest,
    "Release": leases_pb2.ReleaseRequest,
    "AcknowledgeShape": leases_pb2.AcknowledgeShapeRequest,
    "GetInvoice": admin_pb2.GetInvoiceRequest,
    "GrantRole": access_pb2.GrantRoleRequest,
    "RevokeRole": access_pb2.RevokeRoleRequest,
    "IssueToken": access_pb2.IssueTokenRequest,
    "Login": access_pb2.LoginRequest,
    "RevokeTokens": access_pb2.RevokeTokensRequest,
}


@dataclass(slots=True)
class Asking:
    """One call, at a coordinator."""

    name: str
    asked: Any
    raw: bytes
    token: str
    process: Process
    begun_us: int
    at_ms: int
    """The newest durable time when it came."""
    ended_us: int = FAR


class AccessAudit:
    """See the module's docstring."""

    def __init__(self, world: World, auditor: Auditor) -> None:
        self._world = world
        self._auditor = auditor
        self.roles = Roles()
        self.judged = self.turned_away = self.streams_ended = 0
        self._leader: Process | None = None
        self._secrets: dict[str, str] = {}
        """Of leases, as they were told to those who asked."""
        self._calls: dict[int, Asking] = {}
        self._past: dict[str, deque[Asking]] = {}
        """Calls that are over, by method."""
        self._by: dict[str, str] = {}
        """Lease -> who asked for it."""
        self._expiring: list[Held] = []
        self._invites: set[bytes] = set()
        """SHA-256 of each that there ever was."""
        self._keys: dict[str, Held] = {}
        """Node -> the key that speaks for it."""

    # -- what is durable

    def durable(self, facts: list[list[Any]]) -> None:
        """One group of facts."""
        now_us, roles = self._world.loop.now_us, self.roles
        for fact in facts:
            handler = self._FACTS.get(fact[0])
            if handler is not None:
                handler(self, fact, now_us)
        gone = roles.record(now_us)
        at_ms = facts[-1][1]
        over = [held for held in self._expiring if held.expires_ms <= at_ms]
        if over:
            self._expiring = [held for held in self._expiring if held not in over]
        for held in (*gone, *over):
            self._end_streams(held)

    def started(self) -> None:
        """A coordinator leads."""
        self.roles.all_known(self._world.loop.now_us)

    def _led(self, fact: list[Any], now_us: int) -> None:
        self._leader = current()

    def _granted(self, fact: list[Any], now_us: int) -> None:
        role, scope = fact[3]
        self.roles.grant(fact[2], role, scope, now_us)

    def _revoked(self, fact: list[Any], now_us: int) -> None:
        role, scope = fact[3]
        held = self.roles.latest(fact[2], role, scope)
        if held is None or held.until_us != FAR:
            self._auditor.violation(f"{fact[2]} loses a role that it does not have")
        else:
            self.roles.end(held, now_us)

    def _issued(self, fact: list[Any], now_us: int) -> None:
        token = fact[2]
        held = Held(token["principal"], from_us=now_us, sha256=token["sha256"], expires_ms=token["expires_ms"])
        held.session = tuple((role, scope) for role, scope in token.get("grants", ()))
        if wrong := self._unvouched(token, held, fact[1]):
            self._auditor.violation(f"a session of {held.principal} {wrong}")
        self.roles.tokens[token["token_id"]] = self.roles.begin(held)
        if held.expires_ms:
            self._expiring.append(held)

    def _unvouched(self, token: dict[str, Any], held: Held, at_ms: int) -> str:
        """What is wrong with a session: somebody has shown what vouches for it, and it ends with that, or earlier."""
        if token.get("issued_by", "") != ISSUER:
            return "has roles of its own, and nobody vouches for them" if held.session else ""
        for asking in (*self._calls.values(), *self._past.get("Login", ())):
            if asking.name == "Login":
                name, expires_ms, roles = read_voucher(asking.asked.id_token)
                ends_ms = min(expires_ms, at_ms + SESSION_MS_MAX)
                if (name, roles) == (held.principal, held.session) and at_ms < held.expires_ms <= ends_ms:
                    return ""
        return f"until {held.expires_ms} with {held.session} is by nothing that vouches for it so"

    def _tokens_ended(self, fact: list[Any], now_us: int) -> None:
        for token_id in fact[2]:
            self.roles.end(self.roles.tokens[token_id], now_us)

    def _queued(self, fact: list[Any], now_us: int) -> None:
        lease_id, request, key, by = fact[2], fact[4], fact[5], fact[7]
        self._by[lease_id] = by
        self.roles.grant(f"lease:{lease_id}", WORKLOAD, lease_id, now_us)
        self._caused(
            by,
            _ASKS,
            f"{lease_id} of {request['tenant']}",
            lambda asking: (asking.asked.request.tenant, asking.asked.idempotency_key) == (request["tenant"], key),
        )

    def _releasing(self, fact: list[Any], now_us: int) -> None:
        self._released(fact[2], fact[3], fact[7])

    def _ended(self, fact: list[Any], now_us: int) -> None:
        held = self.roles.latest(f"lease:{fact[2]}", WORKLOAD, fact[2])
        if held is not None:
            self.roles.end(held, now_us)
        if fact[5]:
            self._released(fact[2], fact[3], fact[5])

    def _released(self, lease_id: str, reason: str, by: str) -> None:
        if reason == "RELEASED":
            self._caused(by, ("Release",), f"the end of {lease_id}", lambda asking: asking.asked.lease_id == lease_id)

    def _acted(self, fact: list[Any], now_us: int) -> None:
        principal, token_id, action = fact[2], fact[3], fact[5]
        if ":" not in principal:
            self._caused(principal, (action,), fact[6], lambda asking: asking.token.startswith(f"alq_{token_id}_"))

    def _invited(self, fact: list[Any], now_us: int) -> None:
        self._invites.add(fact[2]["sha256"])

    def _enrolled(self, fact: list[Any], now_us: int) -> None:
        self._keys[fact[2]] = self.roles.begin(Held(fact[2], from_us=now_us, sha256=fact[3]))

    def _disenrolled(self, fact: list[Any], now_us: int) -> None:
        self.roles.end(self._keys[fact[2]], now_us)

    _FACTS: dict[str, Any] = {  # noqa: RUF012 - a table
        "leader": _led,
        "role+": _granted,
        "role-": _revoked,
        "token+": _issued,
        "token-": _tokens_ended,
        "queued": _queued,
        "releasing": _releasing,
        "ended": _ended,
        "acted": _acted,
        "invite+": _invited,
        "enrol+": _enrolled,
        "enrol-": _disenrolled,
    }

    def _caused(self, by: str, names: tuple[str, ...], what: str, matches: Any) -> None:
        """What was done in somebody's name, it has asked for, and may have."""
        now_us = self._world.loop.now_us
        found = False
        past = (asking for name in names for asking in self._past.get(name, ()))
        for asking in (*self._calls.values(), *past):
            if asking.name in names and self._name_of(asking.token) == by and matches(asking):
                found = True
                if self._allowed(asking, now_us, surely=False) is not False:
                    return
        wrong = "who may not" if found else "who has not asked for it"
        self._auditor.violation(f"{names[0]} of {by or 'nobody'}, {wrong}: {what}")

    # -- who calls

    def _name_of(self, token: str) -> str:
        """Whose token this is, whether it counts or not; empty: nobody's."""
        found = self._token(token)
        return found.principal if found is not None else ""

    def _token(self, text: str) -> Held | None:
        kind, _, rest = text.removeprefix("alq_").partition("_")
        if kind == "lease":
            lease_id, _, secret = rest.partition("_")
            right = self._secrets.get(lease_id) == secret
            return self.roles.latest(f"lease:{lease_id}", WORKLOAD, lease_id) if right else None
        held = self.roles.tokens.get(kind)
        return held if held is not None and hashlib.sha256(text.encode()).digest() == held.sha256 else None

    def _counts(self, held: Held, begun_us: int, at_ms: int, now_us: int, *, surely: bool) -> bool:
        """Whether a token counts. Of one that expires, nobody knows by which clock."""
        if surely:
            return held.surely(begun_us, now_us) and not held.expires_ms
        return held.possibly(begun_us, now_us) and not 0 < held.expires_ms <= at_ms

    def _allowed(self, asking: Asking, now_us: int, *, surely: bool) -> bool | None:
        """Whether a call may be made, at some moment from when it came until now (`surely`: at all of them). None:
        nobody can say, of a lease that is not known any more, say.
        """
        if asking.name == "Join":
            return None if hashlib.sha256(asking.token.encode()).digest() in self._invites else False
        if asking.name == "Login":
            return None  # what comes of it, its session says
        token = self._token(asking.token)
        if token is None or not self._counts(token, asking.begun_us, asking.at_ms, now_us, surely=surely):
            return False
        principal, name, asked = token.principal, asking.name, asking.asked
        if name in ("IssueToken", "RevokeTokens", "GrantRole", "RevokeRole"):
            return self._may_give(token, asking, now_us, surely=surely)
        needs = self._needs(principal, name, asked)
        if needs is None:
            return None
        return self.roles.may(principal, needs, asking.begun_us, now_us, surely=surely, session=token.session)

    def _needs(self, principal: str, name: str, asked: Any) -> list[Need] | None:
        if name in _OPERATIONS:
            return [(OPERATE, "")]
        if name in _ADMINISTRATION:
            return [(OFFICE, "")]
        if name == "GetInvoice":
            return [(READ, asked.tenant)]
        if name in _ASKS or (name == "Explain" and not asked.lease_id):
            return [(ASK, asked.request.tenant)]
        if name in ("Get", "Explain"):
            return [(LOOK, None)]
        if name in ("List", "Watch"):
            return [(READ, asked.tenant)] if asked.tenant else [(LOOK, None)]
        if name in ("Release", "AcknowledgeShape"):
            return self._holders(principal, asked.lease_id, END_OTHERS if name == "Release" else KEEP_OTHERS)
        return None

    def _holders(self, principal: str, lease_id: str, others: frozenset[int]) -> list[Need] | None:
        """Of who acts for a lease."""
        tenant = self._auditor.books.tenants.get(lease_id)
        if tenant is None:
            return None
        needs: list[Need] = [(others, tenant), (ITSELF, lease_id)]
        if self._by[lease_id] == principal:
            needs.append((ASK, tenant))
        return needs

    def _may_give(self, token: Held, asking: Asking, now_us: int, *, surely: bool) -> bool | None:
        roles, asked, begun_us, principal = self.roles, asking.asked, asking.begun_us, token.principal
        if roles.may(principal, [(OFFICE, "")], begun_us, now_us, surely=surely):
            return True
        if surely:
            return None
        if asking.name in ("GrantRole", "RevokeRole"):
            scope = asked.grant.scope
            needs: list[Need] = [(KEEP_OTHERS, scope)]
            session = token.session if asking.name == "RevokeRole" else ()  # it gives nothing that outlasts it
            return bool(scope) and roles.may(principal, needs, begun_us, now_us, surely=False, session=session)
        if asking.name == "IssueToken" and asked.principal in ("", principal):
            return not asked.grants
        owners = {roles.tokens[each].principal for each in getattr(asked, "token_ids", ()) if each in roles.tokens}
        owners.add(asked.principal)
        others = owners - {"", principal}
        return not any(roles.out_of_reach(principal, of, begun_us, now_us, token.session) for of in others)

    # -- single calls

    def enters(self, number: int, call: Call) -> None:
        """A call has come to a coordinator."""
        name = call.method.rpartition("/")[2]
        reads = _READS.get(name)
        self._calls[number] = Asking(
            name,
            reads.FromString(call.request) if reads is not None else None,
            call.request,
            call.token,
            current(),
            self._world.loop.now_us,
            self._auditor.books.at_ms,
        )

    def leaves(self, number: int, call: Call, result: bytes | Status | None) -> None:
        """It is over there; None: without an answer."""
        now_us = self._world.loop.now_us
        asking = self._calls.pop(number)
        asking.ended_us = now_us
        past = self._past.setdefault(asking.name, deque())
        past.append(asking)
        while past[0].ended_us < now_us - _PAST_US:
            past.popleft()
        if asking.name in _ASKS and isinstance(result, bytes):
            lease = leases_pb2.AllocateResponse.FromString(result).lease
            self._secrets[lease.lease_id] = lease.secret
        if result is None or asking.process is not self._leader:
            return
        if isinstance(result, bytes):
            self._learn(asking.name, result, now_us)
        self._judge(asking, result, now_us)

    def _learn(self, name: str, data: bytes, now_us: int) -> None:
        """What an answer says of roles and tokens, the leader goes by."""
        roles = self.roles
        known: list[Held | None] = []
        if name in ("IssueToken", "Login"):
            known = [roles.tokens.get(access_pb2.IssueTokenResponse.FromString(data).issued.token_id)]
        elif name == "RevokeTokens":
            ended = access_pb2.RevokeTokensResponse.FromString(data).tokens
            known = [roles.tokens.get(token.token_id) for token in ended]
        elif name in ("GrantRole", "RevokeRole"):
            principal = access_pb2.Principal.FromString(data)
            has = {(grant.role, grant.scope) for grant in principal.grants}
            known = [
                held
                for held in roles.grants.get(principal.name, ())
                if ((held.role, held.scope) in has) == (held.until_us == FAR)
            ]
        for held in known:
            if held is not None and roles.know(held, now_us):
                self._end_streams(held)

    def _judge(self, asking: Asking, result: bytes | Status, now_us: int) -> None:
        self.judged += 1
        name, violation = asking.name, self._auditor.violation
        who = self._name_of(asking.token) or "nobody"
        if isinstance(result, bytes):
            idle = name == "RevokeTokens" and not access_pb2.RevokeTokensResponse.FromString(result).tokens
            if not idle and self._allowed(asking, now_us, surely=False) is False:
                violation(f"{name} of {who} is answered, who may not")
            # Certificates are random, and now and then spell a tenant's name.
            said = result if name != "Join" else b""
        else:
            said = b" ".join(
                (result.details.encode(), *(value for _, value in result.metadata if type(value) is bytes))
            )
            code = result.code.name
            if code == "UNAUTHENTICATED":
                self.turned_away += 1
                token = self._token(asking.token)
                if token is not None and self._counts(token, asking.begun_us, asking.at_ms, now_us, surely=True):
                    violation(f"{name} of {who} is refused, whose token counts: {result.details}")
            elif code == "PERMISSION_DENIED":
                self.turned_away += 1
                if self._allowed(asking, now_us, surely=True):
                    violation(f"{name} of {who} is refused, who may: {result.details}")
        self._keep_apart(asking.token, said, asking.raw, asking.begun_us, f"{name} tells {who}")

    # -- what is told

    def _keep_apart(self, token: str, said: bytes, asked: bytes, begun_us: int, what: str) -> None:
        """Nothing names another tenant, but what the caller has named itself and what is above its own."""
        principal, now_us = self._name_of(token), self._world.loop.now_us
        held = self._token(token)
        session = held.session if held is not None else ()
        if self.roles.may(principal, [(READ, "")], begun_us, now_us, surely=False):
            return
        own = self._auditor.books.tenants.get(principal.partition(":")[2])
        for found in sorted(set(_TENANT.findall(said))):
            tenant = found.decode()
            if (own is not None and covers(tenant, own)) or _TENANT_IN[found].search(asked):
                continue
            below: list[Need] = [(READ, each) for each in TENANTS if covers(tenant, each)]
            if not self.roles.may(principal, below, begun_us, now_us, surely=False, session=session):
                self._auditor.violation(f"{what} of {tenant}")
                self._auditor.tell(repr(said))
                return

    def server_sends(self, connection: Connection, data: bytes) -> None:
        """A stream says something."""
        if connection.server.process is not self._leader:
            return
        who, now_us = self._name_of(connection.token), self._world.loop.now_us
        since_us = now_us - ENDS_WITHIN_US - US_PER_S // 4
        if connection.note != WATCH or self.roles.may(who, [(READ, "")], since_us, now_us, surely=False):
            return
        event = leases_pb2.WatchEvent.FromString(data)
        for each in (event, *event.more):
            if each.HasField("lease"):  # nodes are the pool's, with their labels
                said = each.lease.SerializeToString()
                self._keep_apart(connection.token, said, b"", since_us, f"Watch tells {who}")

    def welcomed(self, connection: Connection, node_id: str) -> None:
        """An agent is believed: it has the key of its node."""
        held = self._keys.get(node_id)
        if connection.server.process is not self._leader:
            return
        if held is None:
            self._auditor.violation(f"{connection.client} is believed to be {node_id}, which has never joined")
            return
        machine = self._world.twins.get(connection.client) or self._world.node(connection.client)
        shown = machine.key_sha256 if machine is not None else b""
        if held.surely(connection.begun_us, self._world.loop.now_us) and shown != held.sha256:
            self._auditor.violation(f"{connection.client} is believed to be {node_id}, whose key it does not have")

    # -- streams

    def refused(self, connection: Connection, status: Status) -> None:
        """A stream ends with an error."""
        if connection.server.process is not self._leader or connection.note not in (WATCH, KEEP_ALIVE):
            return
        token = self._token(connection.token)
        now_us = self._world.loop.now_us
        if status.code.name in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            self.streams_ended += 1
        if token is None or not self._counts(token, connection.begun_us, 0, now_us, surely=True):
            return
        if status.code.name == "UNAUTHENTICATED":
            self._auditor.violation(f"a stream of {token.principal} ends, whose token counts: {status.details}")
        elif (
            status.code.name == "PERMISSION_DENIED"
            and connection.note == WATCH
            and self.roles.may(token.principal, [(LOOK, None)], connection.begun_us, now_us, surely=True)
        ):
            self._auditor.violation(f"a stream of {token.principal} ends, who may: {status.details}")

    def keeps(self, connection: Connection, lease_ids: list[str]) -> bool:
        """Whether a keep-alive that has come surely counts for all of these."""
        now_us = self._world.loop.now_us
        token = self._token(connection.token)
        if token is None or not self._counts(token, now_us, 0, now_us, surely=True):
            return False
        needs = [self._holders(token.principal, lease_id, KEEP_OTHERS) for lease_id in lease_ids]
        return all(need and self.roles.may(token.principal, need, now_us, now_us, surely=True) for need in needs)

    def _end_streams(self, held: Held) -> None:
        """A token or a role has ended, and what it opened must end, too; not where the role was given back at once."""
        if held.role and self.roles.latest(held.principal, held.role, held.scope) is not held:
            return
        for connection in list(self._world.network.connections.values()):
            if connection.note not in (WATCH, KEEP_ALIVE) or not connection.server_open:
                continue
            token = self._token(connection.token)
            if token is None or connection.server.process is not self._leader:
                continue
            began_after_us = held.known_us if held.role else 0
            concerns = token is held or (held.role and token.principal == held.principal)
            if concerns and began_after_us <= connection.begun_us < min(held.until_us, self._world.loop.now_us):
                self._look_again(connection, held, _LOOKS)

    def _look_again(self, connection: Connection, held: Held, looks: int) -> None:
        world = self._world
        process = connection.server.process
        if not connection.server_open or process is not self._leader or not process.alive:
            return
        if process.frozen:
            looks = _LOOKS
        elif not looks:
            what = "a role" if held.role else "the token"
            self._auditor.violation(
                f"a stream of {held.principal} goes on {ENDS_WITHIN_US // US_PER_MS} ms after {what} has ended"
            )
            return
        world.loop.call_in(
            world.process, ENDS_WITHIN_US // _LOOKS, self._look_again, connection, held, max(0, looks - 1)
        )


_TENANT_IN = {
    tenant.encode(): re.compile(rb"(?<![A-Za-z0-9_.-])" + tenant.encode() + rb"(?![a-z/])") for tenant in TENANTS
}
