"""What is said on the wire: nothing that is not durable, nothing stale, and nothing believed that was not said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aliquot.v1 import admin_pb2, agent_pb2, leases_pb2, types_pb2
from tests.simulation.auditor.records import Piece
from tests.simulation.sim.server import AGENT_SESSION, KEEP_ALIVE

if TYPE_CHECKING:
    from tests.simulation.auditor.auditor import Auditor
    from tests.simulation.sim.loop import Process
    from tests.simulation.sim.network import Connection
    from tests.simulation.sim.world import World

LONG_QUIET_US = 10_000_000
STILL_THERE_US = 8_000_000
"""Heartbeats come every five seconds."""
_HEARTBEAT = 0x22
_OVER = (agent_pb2.SLICE_STATUS_GONE, agent_pb2.SLICE_STATUS_FAILED)


def node_of(host: str) -> str:
    """The node that a host is, or claims to be."""
    return host.partition("+")[0]


class Heard:
    """What an agent has said on one session."""

    __slots__ = ("active", "held", "over", "snapshot")

    def __init__(self) -> None:
        self.active: set[str] = set()
        self.over: set[str] = set()
        self.held: set[str] = set()
        self.snapshot = False


class WireAudit:
    """See the module's docstring."""

    def __init__(self, world: World, auditor: Auditor) -> None:
        self._world = world
        self._auditor = auditor
        self.kept_us: dict[str, int] = {}
        """Lease -> when a keep-alive, or a call of somebody who waits for it, last reached a coordinator."""
        self.quiet_us: dict[str, tuple[int, int]] = {}
        """Lease -> when a keep-alive last came after a long time without any, and how long that was."""
        self._sessions: dict[int, int] = {}
        """Connection -> session epoch, from the welcome that was sent on it."""
        self._heard: dict[int, Heard] = {}
        self._speaking: dict[str, Connection] = {}
        """Node -> the stream on which its agent was welcomed last."""
        self._spoke_us: dict[int, int] = {}
        """Connection -> when something last came on it."""
        self._keys: dict[tuple[str, str], str] = {}
        self.stopped_us: dict[tuple[str, str], int] = {}
        """(node, slice) -> when its agent was last told to stop it."""
        self.answers = 0
        self._waiting: dict[tuple[str, str], dict[int, tuple[Process, int]]] = {}
        """(tenant, key) -> calls that wait for its lease: where, and since when."""
        self.billed: set[str] = set()
        """Tenants with an invoice for all that there was."""

    # -- from those who ask

    def called(self, number: int, process: Process, method: str, request: bytes, *, begins: bool) -> None:
        """A call reaches a coordinator, or is over there."""
        if not method.endswith("/Allocate"):
            return
        asked = leases_pb2.AllocateRequest.FromString(request)
        waiting = self._waiting.setdefault((asked.request.tenant, asked.idempotency_key), {})
        if begins:
            waiting[number] = process, self._world.loop.now_us
        else:
            waiting.pop(number, None)

    def waits_since_us(self, tenant: str, key: str) -> int | None:
        """Since when a call waits at the leader for the lease of this key."""
        leader, since_us = self._auditor.leader_address, self._auditor.leads_since_us
        calls = self._waiting.get((tenant, key), {}).values() if key else ()
        there = [begun_us for process, begun_us in calls if process.alive and process.host.host == leader]
        return max(min(there), since_us) if there else None

    # -- from agents

    def delivered(self, connection: Connection, up: bool, data: bytes) -> None:
        """A message has arrived."""
        if connection.note == AGENT_SESSION:
            if up and not connection.server.process.frozen:
                self._spoke_us[connection.number] = self._world.loop.now_us
            if up and data[0] != _HEARTBEAT:
                self._from_agent(connection, data)
        elif connection.note == KEEP_ALIVE and up and self._leader_reads(connection):
            lease_ids = list(leases_pb2.KeepAliveRequest.FromString(data).lease_ids)
            if self._auditor.access.keeps(connection, lease_ids):
                for lease_id in lease_ids:
                    self._named(lease_id, self._world.loop.now_us)

    def _leader_reads(self, connection: Connection) -> bool:
        """Whether somebody is there to read it: not the leader before it, in a process that has died, and not one that
        stands still, whose stream may break before it goes on.
        """
        closed = connection.server_begun and not connection.server_open
        reads = connection.server.process.alive and not connection.server.process.frozen
        return connection.address == self._auditor.leader_address and reads and not closed

    def _named(self, lease_id: str, at_us: int) -> None:
        """Somebody who wants this lease spoke to the leader, at this moment or after it, and was heard by now."""
        now_us = self._world.loop.now_us
        quiet_us = now_us - max(self.kept_us.get(lease_id, 0), self._auditor.leads_since_us)
        if quiet_us >= LONG_QUIET_US:
            self.quiet_us[lease_id] = (now_us, quiet_us)
        self.kept_us[lease_id] = max(at_us, self.kept_us.get(lease_id, 0))

    def _from_agent(self, connection: Connection, data: bytes) -> None:
        session = self._sessions.get(connection.number)
        if session is None:
            return
        message = agent_pb2.AgentMessage.FromString(data)
        kind = message.WhichOneof("message")
        if kind == "snapshot":
            reports = message.snapshot.slices
        elif kind == "reports":
            reports = message.reports.reports
        else:
            return
        if self._auditor.verbose:
            said = [(r.slice_id, agent_pb2.SliceStatus.Name(r.status)[13:]) for r in reports]
            self._auditor.tell(
                f"{connection.client} says on {session & 0xFFFFFFFF} ({connection.number}) {kind}: {said}"
            )
        heard = self._heard.setdefault(session, Heard())
        if kind == "snapshot" and not heard.snapshot:
            heard.snapshot = True
            heard.held = {report.slice_id for report in reports}
        for report in reports:
            if report.status == agent_pb2.SLICE_STATUS_ACTIVE:
                heard.active.add(report.slice_id)
            elif report.status in _OVER:
                heard.over.add(report.slice_id)

    def confirmed(self, node_id: str, slice_id: str, what: str) -> bool:
        """Whether the node's agent has said so on the session that the journal has for it now."""
        machine = self._auditor.books.machines[node_id]
        heard = self._heard.get(machine.session)
        if heard is None:
            return False
        if what == "ACTIVE":
            return slice_id in heard.active
        return slice_id in heard.over or (heard.snapshot and slice_id not in heard.held)

    def client_sends(self, connection: Connection, data: bytes) -> None:
        """An agent says something to a coordinator."""
        if connection.note == AGENT_SESSION and data[0] != _HEARTBEAT:
            self._auditor.nodes.disks.says(connection, data)

    # -- from coordinators

    def server_sends(self, connection: Connection, data: bytes) -> None:
        """A coordinator says something to an agent: only what is durable, and all of it where it claims so."""
        self._auditor.access.server_sends(connection, data)
        if connection.note == KEEP_ALIVE:
            self._kept(connection, leases_pb2.KeepAliveResponse.FromString(data))
        if connection.note != AGENT_SESSION:
            return
        message = agent_pb2.CoordinatorMessage.FromString(data)
        kind = message.WhichOneof("message")
        if self._auditor.verbose:
            said = [(o.slice_id, "RUN" if o.state == 1 else "STOP") for o in message.desired.slices]
            settled = list(message.desired.settled)
            self._auditor.tell(
                f"{connection.address} tells {connection.client} ({connection.number}) {kind}: {said}"
                f"{' full' if message.desired.full else ''} settled {settled}"
            )
        if kind == "welcome":
            self._sessions[connection.number] = message.welcome.session_epoch
            self._welcomed(connection)
            self._auditor.access.welcomed(connection, node_of(connection.client))
        elif kind == "desired":
            self._desired(connection, message.desired)

    def _kept(self, connection: Connection, said: Any) -> None:
        """Who keeps leases alive hears which of them are lost."""
        if connection.address != self._auditor.leader_address:
            return
        for lease_id in said.lost:
            story = self._auditor.books.stories.get(lease_id)
            if story is not None and not story.ended and not story.ending:
                self._auditor.violation(f"{connection.client} is told that {lease_id} is lost, which lives")

    def _welcomed(self, connection: Connection) -> None:
        """One machine at a time is a node: another may only take its place when it is not heard any more. A coordinator
        that has only begun to lead has heard nobody.
        """
        before = self._speaking.get(node_of(connection.client))
        self._speaking[node_of(connection.client)] = connection
        if before is None or before.client == connection.client or not before.client_open:
            return
        spoke_us = self._spoke_us.get(before.number, -STILL_THERE_US)
        heard = before.address == connection.address and spoke_us >= self._auditor.leads_since_us
        if heard and self._world.loop.now_us - spoke_us < STILL_THERE_US:
            self._auditor.violation(f"{connection.client} takes the place of {before.client}, which is there")

    def _desired(self, connection: Connection, desired: Any) -> None:
        auditor, books = self._auditor, self._auditor.books
        node_id = node_of(connection.client)
        deposed = desired.leader_epoch < books.leader
        if desired.leader_epoch > books.leader:
            auditor.violation(f"{node_id} hears of leader epoch {desired.leader_epoch}, which is not durable")
        machine = books.machines.get(node_id)
        pieces: dict[str, Piece] = machine.pieces if machine is not None else {}
        for order in desired.slices:
            known = books.granted_ever.get(order.slice_id)
            if known is None:
                auditor.violation(f"{node_id} is told of {order.slice_id}, which is not durable")
                continue
            if known != (node_id, order.device_uuid, order.share_milli, order.memory_bytes):
                auditor.violation(f"{node_id} is told of another {order.slice_id} than was granted")
            if deposed:
                continue
            piece = pieces.get(order.slice_id)
            if order.state == agent_pb2.DESIRED_STATE_STOP:
                self.stopped_us[node_id, order.slice_id] = self._world.loop.now_us
            if order.state == agent_pb2.DESIRED_STATE_RUN and (piece is None or piece.ending):
                auditor.violation(f"{node_id} is told to run {order.slice_id}, which is over")
            if order.state == agent_pb2.DESIRED_STATE_STOP and piece is not None and not piece.ending:
                auditor.violation(f"{node_id} is told to stop {order.slice_id}, which nobody has ended")
        for slice_id in desired.settled:
            if slice_id in pieces and not deposed:
                auditor.violation(f"{node_id} may forget {slice_id}, which still holds capacity")
        if desired.full and not deposed:
            named = {order.slice_id for order in desired.slices}
            missing = pieces.keys() - named
            if missing:
                auditor.violation(f"{node_id} is told everything, but not {min(missing)}")

    def answered(self, address: str, method: str, request: bytes, result: Any) -> None:
        """A coordinator answers a call."""
        name = method.rpartition("/")[2]
        self.answers += 1
        if not isinstance(result, bytes):
            self._refused(address, name, request, result)
            return
        data = result
        if name == "Allocate":
            asked = leases_pb2.AllocateRequest.FromString(request)
            lease = leases_pb2.AllocateResponse.FromString(data).lease
            self._lease(lease, "Allocate")
            if address == self._auditor.leader_address:  # one that was deposed may still answer what was durable then
                self._named(lease.lease_id, self._auditor.decided_after_us)
            key = (asked.request.tenant, asked.idempotency_key)
            if asked.idempotency_key:
                self._key(key, lease.lease_id)
        elif name == "Get":
            self._lease(types_pb2.Lease.FromString(data), "Get")
        elif name == "Release":
            self._lease(leases_pb2.ReleaseResponse.FromString(data).lease, "Release", releasing=True)
        elif name == "GetInvoice":
            self._invoice(address, admin_pb2.Invoice.FromString(data))
        elif name == "List":
            response = leases_pb2.ListResponse.FromString(data)
            if response.seq > self._auditor.books.seq:
                self._auditor.violation(
                    f"List shows fact {response.seq}, but only {self._auditor.books.seq} are durable"
                )
            for lease in response.leases:
                self._lease(lease, "List")

    def _invoice(self, address: str, invoice: Any) -> None:
        """Of a period that is over, an invoice says the same whenever it is asked for."""
        over = invoice.to_ms < self._auditor.books.at_ms or invoice.to_ms == self._auditor.all_until_ms
        if address != self._auditor.leader_address or not over:
            return
        wrong = self._auditor.books.money.compare(invoice)
        if wrong:
            self._auditor.violation(f"tenant {invoice.tenant}: {wrong}")
        if not invoice.from_ms and invoice.to_ms == self._auditor.all_until_ms:
            self.billed.add(invoice.tenant)

    def _refused(self, address: str, name: str, request: bytes, status: Any) -> None:
        code = status.code.name
        if code in ("INTERNAL", "UNKNOWN"):
            self._auditor.violation(f"{name} is answered {code}: {status.details}")
        elif name == "Allocate" and code == "NOT_FOUND":
            self._auditor.violation(f"Allocate is answered NOT_FOUND: {status.details}")
        elif name == "Get" and code == "NOT_FOUND" and address == self._auditor.leader_address:
            lease_id = leases_pb2.GetRequest.FromString(request).lease_id
            story = self._auditor.books.stories.get(lease_id)
            if story is not None and not story.ended:
                self._auditor.violation(f"{address} does not know {lease_id}, which is durable")

    def _key(self, key: tuple[str, str], lease_id: str) -> None:
        """A key has one lease for as long as that is kept: whoever asks again later than that asks anew."""
        stories = self._auditor.books.stories
        known = self._keys.get(key)
        if known not in stories:
            self._keys[key] = lease_id
        elif known != lease_id and lease_id in stories:
            self._auditor.violation(f"key {key[1]} was answered with {known}, now with {lease_id}")

    def _lease(self, lease: Any, where: str, *, releasing: bool = False) -> None:
        auditor, books = self._auditor, self._auditor.books
        if lease.seq > books.seq:
            auditor.violation(
                f"{where} shows {lease.lease_id} as of fact {lease.seq}, but only {books.seq} are durable"
            )
            return
        story = books.stories.get(lease.lease_id)
        if story is None:
            if lease.lease_id not in self.kept_us:
                auditor.violation(f"{where} shows {lease.lease_id}, which is not durable")
            return
        for piece in lease.slices:
            known = books.granted_ever.get(piece.slice_id)
            if known is None or known != (piece.node_id, piece.device_uuid, piece.share_milli, piece.memory_bytes):
                auditor.violation(f"{where} shows {piece.slice_id}, which was not granted so")
        if releasing and not story.ended and not (story.ending and not story.requeue):
            auditor.violation(f"the release of {lease.lease_id} is answered, but not durable")
