"""The connection to the coordinator: handshake, snapshot, then deltas and confirmations up, desired state down.

While there is no connection, reservations stay, limits are enforced and processes run on: nothing ends because
the coordinator is away. A new connection starts with a snapshot, so nothing depends on what arrived before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import msgspec

from aliquot.agent.connection import Call, Coordinators, SessionEnded, ending_of_call, ending_of_error
from aliquot.agent.controller import Controller
from aliquot.agent.disk.membership import Membership
from aliquot.agent.parts import Ground, Holding
from aliquot.agent.renewal import Renewal, renewed
from aliquot.agent.reporting import Reporter
from aliquot.agent.wire import batch_from_wire, care_from_wire, cut_from_wire, overtime_from_wire
from aliquot.common.addresses import Addresses
from aliquot.common.backoff import Backoff
from aliquot.common.errors import SecurityError
from aliquot.common.limits import ADDRESSES_MAX
from aliquot.common.proof import NONCE_BYTES, session_proof
from aliquot.common.tls import fingerprints
from aliquot.common.validity import Lifetime
from aliquot.v1 import agent_pb2

log = logging.getLogger(__name__)

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
WELCOME_TIMEOUT_S = 10.0
DEFAULT_HEARTBEAT_MS = 5_000
DEFAULT_DELTA_MS = 1_000
MIN_HEARTBEAT_MS = 100

HOPELESS = {
    "PROTOCOL_VERSION": "agent and coordinator are too far apart in version: update the older one",
    "NODE_NAME_TAKEN": "another node has this name: give this one another with --node-name",
    "DEVICE_CLAIMED": "another node has a device of this one: two agents on one machine, or a copied state directory?",
    "NOT_ENROLLED": "let it join: an operator's `aliquot node invite` prints the command to run here",
    "WRONG_KEY": "let it join again: an operator's `aliquot node invite` prints the command to run here",
    "DISENROLLED": "an operator took it out of the pool; to take it in again, `aliquot node invite`",
    "OTHER_POOL": "give it the coordinators of its own pool, or let it join this one",
    "NOT_ALLOWED": "this agent's certificate is not for this node: give it one that names the node's id",
}
"""Reasons that trying again at once does not change, and what an administrator should do."""
HOPELESS_WAIT_S = 30.0


class Stream:
    """Keeps one session with the leading coordinator, for ever. Use from one event loop."""

    def __init__(
        self,
        ground: Ground,
        holding: Holding,
        orders: Controller,
        reporter: Reporter,
        look_up: Callable[[], Coordinators],
    ) -> None:
        """`look_up` says where the coordinators are and what this node shows them; it may raise SecurityError."""
        world = ground.world
        self._state, self._state_dir, self._world = ground.state, ground.settings.state_dir, world
        self._orders, self._cards, self._care = orders, reporter.partitions, reporter.care
        self._reporter, self._mailbox, self._hear = reporter, holding.mailbox, holding.watchdog.hear
        self._look_up = look_up
        self._coordinators = look_up()
        self._addresses = Addresses(self._coordinators.addresses)
        self._renewal: Renewal | None = None
        self._backoff = Backoff(random=world.random)
        self._again = asyncio.Event()
        self._heartbeat_ms = DEFAULT_HEARTBEAT_MS
        self.sessions = 0
        """Handshakes that succeeded, for metrics."""

    @property
    def life(self) -> Lifetime:
        """Of the certificate by which the pool knows this node; all 0: it has joined none."""
        member = self._coordinators.member
        return Lifetime(0, 0) if member is None else Lifetime(*member.life_ms)

    async def run(self) -> None:
        """Connect, talk, connect again."""
        while True:
            address = self._addresses.take()
            wait_s = 0.0
            try:
                self._look_again()
                await self._session(address)
            except SessionEnded as ended:
                wait_s = self._ended(address, ended)
            except SecurityError as error:
                log.error("%s: %s", address, error.explain())  # noqa: TRY400
                wait_s = HOPELESS_WAIT_S
            except Exception:  # a defect here must not end enforcement
                log.exception("the session with %s failed", address)
            finally:
                self._state.connected = False
            if wait_s or not self._addresses.referred:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff.next_s(wait_s)):
                        await self._again.wait()
                self._again.clear()
                self._addresses.waited()

    def connect_again(self) -> None:
        """Without waiting any longer: the node has joined, and would be refused no more."""
        self._again.set()

    def _look_again(self) -> None:
        """The node may have joined, or joined anew, since it last tried."""
        found = self._look_up()
        if tuple(found.addresses) != tuple(self._coordinators.addresses):
            self._addresses = Addresses(found.addresses)
        self._coordinators = found

    async def _apart(self, place: str, *arguments: object) -> Any:  # noqa: ANN401 - see `apart`
        """Raises `SecurityError`, and `SessionEnded` where that can't be run now."""
        try:
            return await self._world.apart(place, *arguments)
        except OSError as error:
            raise SessionEnded(f"what uses keys and certificates can't be run: {error}") from error

    def _ended(self, address: str, ended: SessionEnded) -> float:
        """Take note of how a session ended. Returns the least time to wait."""
        self._addresses.leader_is(ended.leader)
        advice = HOPELESS.get(ended.word, "")
        if advice:
            log.error("coordinator %s refuses this node: %s: %s", address, ended.message, advice)
            return HOPELESS_WAIT_S
        log.warning("no session with coordinator %s: %s", address, ended.message)
        return 0.0 if self._addresses.referred else ended.wait_s

    # ----------------------------------------------------------------------------------------------------
    # a session

    async def _session(self, address: str) -> None:
        """One connection from beginning to end; always raises `SessionEnded` (or `SecurityError`)."""
        async with self._world.open_session(address, self._coordinators) as call:
            try:
                welcome = await self._handshake(call)
                log.info(
                    "session %d with coordinator %s of leader epoch %d",
                    welcome.session_epoch,
                    address,
                    welcome.leader_epoch,
                )
                await self._orders.follow(welcome.leader_epoch)
                self._addresses.worked(address)
                self._backoff.succeeded()
                self.sessions += 1
                self._state.connected, self._state.coordinator = True, address
                self._set_intervals(welcome.intervals)
                self._mailbox.request_snapshot()
                self._renewal = self._renewal_of()
                await self._talk(call, welcome.session_epoch)
            except grpc.aio.AioRpcError as error:
                raise ending_of_error(error) from error
            except asyncio.InvalidStateError as error:  # written to after its end
                raise await ending_of_call(call) from error
            finally:
                call.cancel()

    async def _handshake(self, call: Call) -> agent_pb2.Welcome:
        hello = agent_pb2.Hello(
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            agent_version=self._world.version,
            node_id=self._state.node_id,
            boot_id=self._state.boot_id,
            leader_epoch=self._orders.leader_epoch,
            clock_ms=self._wall_ms(),
        )
        member = self._coordinators.member
        if member is not None:
            hello.nonce = self._world.entropy(NONCE_BYTES)
            hello.trusts.extend(fingerprints(member.authorities_pem))
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                await call.write(agent_pb2.AgentMessage(hello=hello))
                message = await call.read()
                if isinstance(message, agent_pb2.CoordinatorMessage) and message.HasField("challenge"):
                    signed = _signed(member, hello, message.challenge)
                    key, signature = await self._apart("aliquot.agent.node_key:sign", *signed)
                    proof = agent_pb2.Proof(public_key=key, signature=signature)
                    await call.write(agent_pb2.AgentMessage(proof=proof))
                    message = await call.read()
        except TimeoutError:
            raise SessionEnded(f"no welcome within {WELCOME_TIMEOUT_S:g} s") from None
        if not isinstance(message, agent_pb2.CoordinatorMessage):  # the end of the stream
            raise await ending_of_call(call)
        if message.HasField("goodbye"):
            raise _goodbye(message.goodbye)
        if not message.HasField("welcome"):
            raise SessionEnded("the coordinator began with something else than a welcome")
        welcome: agent_pb2.Welcome = message.welcome
        if not PROTOCOL_MIN <= welcome.protocol <= PROTOCOL_MAX:
            raise SessionEnded(
                f"the coordinator speaks protocol {welcome.protocol}, this agent {PROTOCOL_MIN} to {PROTOCOL_MAX}",
                word="PROTOCOL_VERSION",
            )
        if welcome.leader_epoch < self._orders.leader_epoch:
            raise SessionEnded(
                f"it leads in epoch {welcome.leader_epoch}, but this node has obeyed {self._orders.leader_epoch}: "
                "a leader that was replaced and does not know it yet, or a coordinator older than this agent, which "
                "can't go past an epoch that its journal does not know"
            )
        self._meet(welcome.coordinators)
        return welcome

    def _meet(self, coordinators: Sequence[str]) -> None:
        """Keep where all coordinators of the pool are, for when those that were named to this node are gone."""
        member = self._coordinators.member
        if member is None:
            return
        addresses = tuple(dict.fromkeys([*coordinators, *member.addresses]))[:ADDRESSES_MAX]
        if set(addresses) == set(member.addresses):
            return
        self._is_kept(msgspec.structs.replace(member, addresses=addresses))

    def _is_kept(self, member: Membership) -> bool:
        """Go by what is known of the pool from now on, if it can be kept. That it can't does no harm yet."""
        try:
            self._world.write_member(self._state_dir, member)
        except OSError as error:
            log.error("what is known of the pool can't be kept, trying again later: %s", error)  # noqa: TRY400
            return False
        self._coordinators = msgspec.structs.replace(self._coordinators, member=member)
        return True

    def _wall_ms(self) -> int:
        return self._world.wall_ns() // 1_000_000

    def _renewal_of(self) -> Renewal | None:
        member = self._coordinators.member
        if member is None:
            return None
        world = self._world
        return Renewal(member, wall_ms=self._wall_ms, monotonic_s=world.monotonic_s, random=world.random)

    async def _take_certificate(self, certificate: agent_pb2.Certificate) -> None:
        """Keep the one that was asked for."""
        if self._renewal is None:
            return
        member = await renewed(self._apart, self._renewal.member, certificate)
        if member is None:
            log.error("a certificate came that is not of this pool's authority for this node's key; it is not kept")
            return
        if member == self._renewal.member or not self._is_kept(member):
            return
        self._renewal = self._renewal_of()
        if certificate.chain_pem:
            log.info("this node's certificate was renewed")
        elif self._renewal is not None:
            log.info("the pool's authority has changed; whom to trust is kept")
            self._renewal.hurry(certificate.spread_ms / 1000)
            self._mailbox.wakeup.set()

    async def _talk(self, call: Call, session_epoch: int) -> None:
        tasks = [
            asyncio.create_task(self._listen(call, session_epoch), name="coordinator: listen"),
            asyncio.create_task(self._send_reports(call, session_epoch), name="coordinator: tell"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:  # in this order, which `done` has not: what was heard tells more than a failed write
                if task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, call: Call, session_epoch: int) -> None:
        while True:
            message = await call.read()
            if not isinstance(message, agent_pb2.CoordinatorMessage):  # the end of the stream
                raise await ending_of_call(call)
            kind = message.WhichOneof("message")
            if kind == "desired":
                batch, complaints = batch_from_wire(message.desired)
                for complaint in complaints:
                    log.error("an order can't be read: %s", complaint)
                # First, so that no lease begins here before it is known what its tenant did elsewhere.
                self._hear(overtime_from_wire(message.desired.overtime, self._world.clock.monotonic_ms()))
                await self._orders.obey(batch, session_epoch)
            elif kind == "snapshot_request":
                log.info("the coordinator asks for a snapshot: %s", message.snapshot_request.reason)
                self._mailbox.request_snapshot()
            elif kind == "cut" and message.cut.leader_epoch >= self._orders.leader_epoch:
                self._cards.obey(cut_from_wire(message.cut))
            elif kind == "care" and message.care.leader_epoch >= self._orders.leader_epoch:
                care = care_from_wire(message.care)
                if care is not None:
                    self._care.obey(care)
            elif kind == "certificate":
                await self._take_certificate(message.certificate)
            elif kind == "intervals":
                self._set_intervals(message.intervals)
            elif kind == "goodbye":
                raise _goodbye(message.goodbye)

    async def _send_reports(self, call: Call, session_epoch: int) -> None:
        loop = asyncio.get_running_loop()
        heartbeat_at = 0.0
        while True:
            self._mailbox.wakeup.clear()
            sent = False
            for message in self._pending(session_epoch):
                await call.write(message)
                sent = True
            if self._renewal is not None and self._renewal.due():
                await call.write(await self._renewal.asked(self._apart))
                sent = True
            if not sent and loop.time() >= heartbeat_at:
                heartbeat = agent_pb2.Heartbeat(seq=self._mailbox.seq)
                await call.write(agent_pb2.AgentMessage(heartbeat=heartbeat))
                sent = True
            if sent:
                # Any message is a sign of life. Jitter keeps the agents of a pool from sending all at once.
                heartbeat_at = loop.time() + self._heartbeat_ms / 1000 * self._world.random.uniform(0.9, 1.0)
            wait_s = min(heartbeat_at - loop.time(), self._mailbox.devices_in_s())
            if self._renewal is not None:
                wait_s = min(wait_s, self._renewal.due_in_s())
            await self._mailbox.wakeup.wait(max(0.01, wait_s))

    def _pending(self, session_epoch: int) -> Iterator[agent_pb2.AgentMessage]:
        """What there is to send now, made one message at a time, so that each tells what is true when it is sent."""
        if self._mailbox.wants_snapshot:
            yield agent_pb2.AgentMessage(snapshot=self._reporter.snapshot(session_epoch))
        if (served := self._reporter.served()) is not None:
            yield agent_pb2.AgentMessage(served=served)
        while (reports := self._reporter.confirmations(session_epoch)) is not None:
            yield agent_pb2.AgentMessage(reports=reports)
        delta = self._reporter.delta()
        if delta is not None:
            yield agent_pb2.AgentMessage(delta=delta)

    def _set_intervals(self, intervals: agent_pb2.Intervals) -> None:
        self._heartbeat_ms = max(MIN_HEARTBEAT_MS, intervals.heartbeat_ms or DEFAULT_HEARTBEAT_MS)
        self._mailbox.set_interval(intervals.delta_min_ms or DEFAULT_DELTA_MS)


def _goodbye(message: agent_pb2.Goodbye) -> SessionEnded:
    return SessionEnded(f"goodbye: {message.reason}", word=message.reason, wait_s=message.reconnect_after_ms / 1000)


def _signed(member: Membership | None, hello: agent_pb2.Hello, challenge: agent_pb2.Challenge) -> tuple[str, bytes]:
    """The key to sign with, and what. Raises `SessionEnded` where nothing is signed for whom asks."""
    if member is None:
        raise SessionEnded("the coordinator asks for a key, but this node has none", word="NOT_ENROLLED")
    if challenge.pool_id != member.pool_id or len(challenge.nonce) != NONCE_BYTES:
        # Signed for another pool, it could be used there.
        raise SessionEnded(
            f"this is pool {challenge.pool_id[:64]!r}, but this node has joined {member.pool_id}", word="OTHER_POOL"
        )
    return member.key_pem, session_proof(
        challenge.pool_id, hello.node_id, hello.boot_id, agent_nonce=hello.nonce, coordinator_nonce=challenge.nonce
    )
