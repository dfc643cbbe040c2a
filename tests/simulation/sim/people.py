"""Who calls: people with roles and tokens, and the office that gives both, takes them away, and lets nodes join.

Everybody's tokens come from the coordinator, by the calls that administrators make. While requests come, somebody's
token is revoked, expires or is replaced now and then, a role is taken away for some seconds, and somebody tries what
only others may.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import grpc

from aliquot.common.tokens import lease_token, token_id_of
from aliquot.v1 import access_pb2, admin_pb2, pool_pb2
from tests.identity import ADMIN_TOKEN
from tests.simulation.sim.calls import CallFailed
from tests.simulation.sim.enrolling import join
from tests.simulation.sim.loop import Process
from tests.simulation.sim.vouching import voucher

if TYPE_CHECKING:
    from tests.simulation.sim.launchers import Asked
    from tests.simulation.sim.nodes import SimNode
    from tests.simulation.sim.world import World

TENANTS = ("astro", "bio", "chem", "dev", "dev/edu")
"""One of them is below another."""
ACCESS, POOL, ADMIN = "/aliquot.v1.AccessService/", "/aliquot.v1.PoolService/", "/aliquot.v1.AdminService/"
DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
ODD = 0.06
"""How often a call comes with another token than its caller's present one, or with none."""
TRESPASSES = 0.04
"""How often a launcher asks for a tenant in which it has no role."""
LOGS_IN = 2
"""Of three launchers, which one has no tokens but sessions."""
VOUCHED_MS = (8_000, 20_000, 60_000, 14 * 3_600_000)
"""How long the provider vouches for somebody."""
STRANGE = f"alq_{'0' * 12}_{'f' * 64}"
"""A token of another pool."""
LOOKS_EVERY_S = 0.5
DISTURBS = 0.2
"""How often, of the times it looks, the office does something that is not asked of it."""
Role = tuple[Any, str]


@dataclass(slots=True)
class Person:
    """Somebody who calls."""

    name: str
    roles: tuple[Role, ...]
    token: str = ""
    """The present one; empty: it has none yet."""
    spent: list[str] = field(default_factory=list)
    """Earlier ones."""
    wants: bool = True
    """A token."""
    logs_in: bool = False
    """Its tokens are sessions: an identity provider vouches for it and its roles."""

    @property
    def tenants(self) -> list[str]:
        """In which it may ask for leases."""
        return [scope for role, scope in self.roles if role in (access_pb2.USER, access_pb2.MANAGER)]

    def refused(self, token: str) -> None:
        """Nobody knew this token of its."""
        self.wants = self.wants or token == self.token


class People:
    """All of them, and the office."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self.operator = Person("olga", ((access_pb2.OPERATOR, ""),))
        self.readers = [
            Person("reader", ((access_pb2.VIEWER, ""),)),
            Person("guest", ((access_pb2.VIEWER, random.choice(TENANTS)),)),
        ]
        self.launchers: dict[int, Person] = {}
        self._taken: list[tuple[int, Person, Role]] = []
        """(when it is given back, whose, what)"""
        self.process: Process = world.loop.spawn("office")
        self.process.host = self
        self.host = "office"

    @property
    def all(self) -> list[Person]:
        """In the order in which they came."""
        return [self.operator, *self.readers, *self.launchers.values()]

    def start(self) -> None:
        """The office opens."""
        self._world.loop.start(self.process, self._work(), "office")

    def let_join(self, node: SimNode) -> None:
        """A node is invited, and joins."""
        self._world.loop.start(self.process, join(self, node), f"{node.node_id} joins")

    def launcher(self, number: int) -> Person:
        """Who a launcher is: a user of some tenants, or a manager."""
        random = self._random
        scopes = sorted(random.sample(TENANTS, random.randint(2, 4)))
        roles = tuple((access_pb2.MANAGER if random.random() < 0.2 else access_pb2.USER, scope) for scope in scopes)
        self.launchers[number] = person = Person(f"person-{number:03d}", roles, logs_in=number % 3 == LOGS_IN)
        return person

    def someone(self, random: Random) -> str:
        """The token of anybody."""
        people = self.all
        return people[random.randrange(len(people))].token

    def odd(self, caller: Person, method: str, asked: Asked | None) -> str | None:
        """A token that a call should not come with, if it is to; None: its caller's own."""
        random = self._random
        if random.random() >= ODD:
            return None
        choices = ["", STRANGE, self.readers[0].token, *caller.spent[-2:]]
        if method != "Allocate":
            choices.append(random.choice(list(self.launchers.values())).token)
            if asked is not None and asked.secret:
                choices += [lease_token(asked.lease_id, asked.secret)] * 3
        return random.choice(choices)

    # -- the office

    async def call(self, method: str, request: Any, token: str = ADMIN_TOKEN, host: str = "office") -> bytes | None:
        """One call to whoever leads; None where nothing comes of it."""
        network, leader = self._world.network, self._world.cluster.leader.host
        try:
            return await network.call(host, leader, method, request.SerializeToString(), 5.0, token)
        except CallFailed:
            return None

    async def _work(self) -> None:
        world = self._world
        while True:
            for person in self.all:
                if person.wants:
                    await self._issue(person)
            await self._give_back()
            if world.issuing and self._random.random() < DISTURBS:
                await self._disturb()
            await asyncio.sleep(LOOKS_EVERY_S)

    async def _issue(self, person: Person, ttl_ms: int = 0) -> bool:
        """A new token; of who logs in, a session, which ends with what vouches for them."""
        if person.logs_in:
            ends_ms = self._world.auditor.books.at_ms + (ttl_ms or self._random.choice(VOUCHED_MS))
            login = access_pb2.LoginRequest(id_token=voucher(person.name, person.roles, ends_ms))
            return self._take_token(person, await self.call(ACCESS + "Login", login, ""))
        request = access_pb2.IssueTokenRequest(principal=person.name, ttl_ms=ttl_ms)
        for role, scope in person.roles:
            if all((person, (role, scope)) != taken[1:] for taken in self._taken):
                request.grants.add(role=role, scope=scope)
        return self._take_token(person, await self.call(ACCESS + "IssueToken", request))

    @staticmethod
    def _take_token(person: Person, data: bytes | None) -> bool:
        if data is None:
            return False
        if person.token:
            person.spent.append(person.token)
        person.token, person.wants = access_pb2.IssueTokenResponse.FromString(data).token, False
        return True

    async def _revoke(self, token: str) -> None:
        request = access_pb2.RevokeTokensRequest(token_ids=[token_id_of(token) or ""])
        await self.call(ACCESS + "RevokeTokens", request)

    async def _give_back(self) -> None:
        """Roles that were taken for some time."""
        for entry in list(self._taken):
            due_us, person, (role, scope) = entry
            if self._world.issuing and self._world.loop.now_us < due_us:
                continue
            grant = access_pb2.RoleGrant(role=role, scope=scope)
            request = access_pb2.GrantRoleRequest(principal=person.name, grant=grant)
            if await self.call(ACCESS + "GrantRole", request) is not None:
                self._taken.remove(entry)

    async def _disturb(self) -> None:
        random = self._random
        person = random.choice(self.all)
        if not person.token:
            return
        what = random.choice((self._end, self._replace, self._shorten, self._take, self._take, self._trespass))
        await what(person)

    async def _end(self, person: Person) -> None:
        """A token is revoked that is in use."""
        await self._revoke(person.token)

    async def _replace(self, person: Person) -> None:
        """Another token is given, then the one before is revoked."""
        before = person.token
        if await self._issue(person):
            await self._revoke(before)

    async def _shorten(self, person: Person) -> None:
        """A token that soon expires takes the place of the present one."""
        await self._issue(person, self._random.randint(2_000, 15_000))

    async def _take(self, person: Person) -> None:
        """A role is taken away for some seconds. Those of a session end with it."""
        random = self._random
        if person.logs_in:
            await self._end(person)
            return
        role, scope = random.choice(person.roles)
        back_us = self._world.loop.now_us + random.randint(1, 6) * 1_000_000
        self._taken.append((back_us, person, (role, scope)))
        grant = access_pb2.RoleGrant(role=role, scope=scope)
        request = access_pb2.RevokeRoleRequest(principal=person.name, grant=grant)
        await self.call(ACCESS + "RevokeRole", request)

    async def _trespass(self, person: Person) -> None:
        """Somebody tries what only others may."""
        random = self._random
        tenant, node = random.choice(TENANTS), random.choice(self._world.nodes) if self._world.nodes else None
        method, request = random.choice(
            (
                (POOL + "Cordon", pool_pb2.CordonRequest(node_id=node.node_id if node is not None else "")),
                (ADMIN + "PostCredit", admin_pb2.PostCreditRequest(tenant=tenant, money_micro=1, reference="mine")),
                (ADMIN + "GetInvoice", admin_pb2.GetInvoiceRequest(tenant=tenant, from_ms=0, to_ms=1)),
                (ACCESS + "IssueToken", access_pb2.IssueTokenRequest(principal="admin")),
                (
                    ACCESS + "GrantRole",
                    access_pb2.GrantRoleRequest(
                        principal=person.name, grant=access_pb2.RoleGrant(role=access_pb2.MANAGER, scope=tenant)
                    ),
                ),
                (ACCESS + "RevokeTokens", access_pb2.RevokeTokensRequest(principal=self.operator.name)),
            )
        )
        if person is not self.operator:
            await self.call(method, request, person.token)
