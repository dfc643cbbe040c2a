"""The auditor itself: where it is attached to the world, and what it makes of what it sees."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import msgspec

from tests.simulation.auditor.access import AccessAudit
from tests.simulation.auditor.books import Books
from tests.simulation.auditor.followers import FollowersAudit
from tests.simulation.auditor.nodes import NodesAudit
from tests.simulation.auditor.records import LOST, READY, Piece, Story
from tests.simulation.auditor.wire import WireAudit
from tests.simulation.sim.loop import current

if TYPE_CHECKING:
    from tests.simulation.sim.coordinators import CoordinatorHost
    from tests.simulation.sim.world import World

TRACE_LINES = 400
EXPIRY_SLACK_MS = 4_000
"""A coordinator that stood still for less than it takes for a pause may find a keep-alive too late by as much."""
_decode = msgspec.msgpack.Decoder().decode


class Auditor:
    """See the package's docstring."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[str] = []
        self.books = Books()
        self.books.health.now_s = world.now_s
        self.nodes = NodesAudit(world, self)
        self.wire = WireAudit(world, self)
        self.followers = FollowersAudit(self)
        self.access = AccessAudit(world, self)
        self.lease_operations = 0
        self.facts: Counter[str] = Counter()
        self._last_digest = bytes(32)
        self._durable_us: deque[int] = deque((0, 0, 0), maxlen=3)
        """When the last records became durable."""
        self.verbose = False
        """Keep a line of everything, without end: for looking at one seed."""
        self._trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._writer_epoch = 0
        self.leads_since_us = 0
        self._queued_us: dict[str, int] = {}
        self.leader_address = ""
        """Where the coordinator of the latest leader epoch is."""
        self.all_until_ms = 0
        """When nothing happens any more: the end of the last invoices."""

    @property
    def decided_after_us(self) -> int:
        """What the last record holds, or is answered with it, was decided after this: when the last record but two was
        durable, the one between was handed over, and only then was the last one opened.
        """
        return self._durable_us[0]

    def _drawn_mj(self, node_id: str) -> int:
        return sum(sum(node.drawn_mj.values()) for node in self._world.nodes if node_id in ("", node.node_id))

    # -- reporting

    def note(self, text: str) -> None:
        """A line of the trace."""
        self._trace.append(f"{self._world.now_s():9.3f}  {text}")

    def tell(self, text: str) -> None:
        """A line of the long trace."""
        if self.verbose:
            self.note(text)

    def violation(self, text: str) -> None:
        """Something that must not be."""
        self.note(f"VIOLATION {text}")
        self.violations.append(f"at {self._world.now_s():.3f} s: {text}")

    def keep_everything(self) -> None:
        """From now on, the long trace."""
        self.verbose = True
        self._trace = deque(self._trace)

    def trace(self) -> list[str]:
        """The last lines."""
        return list(self._trace)

    def events(self) -> int:
        """Everything that happened in the simulated world: see docs/simulation.md."""
        world = self._world
        return (
            world.network.events
            + self.facts.total()
            + world.store.commits
            + sum(node.events + node.disk.writes for node in world.nodes)
            + world.injector.injected.total()
        )

    def counts(self) -> dict[str, int]:
        """What it saw how often."""
        world = self._world
        return {
            "messages": world.network.events,
            "facts": self.facts.total(),
            "commits": world.store.commits,
            "machine": sum(node.events for node in world.nodes),
            "agent_writes": sum(node.disk.writes for node in world.nodes),
            "grants": self.facts["granted"],
            "requeues": self.facts["requeued"],
            "ended": self.facts["ended"],
            "attached": world.attached,
            "signals": self.nodes.signals,
            "failovers": world.cluster.failovers,
            "coordinator_starts": sum(host.starts for host in world.cluster.hosts),
            "agent_starts": sum(node.agent_starts for node in world.nodes),
            "snapshots": world.cluster.snapshots,
            "torn_tails": world.store.torn_tails_cut,
            "nodes_lost": self.nodes_lost,
            "grown": self.facts["grown"],
            "shed": self.facts["shed"],
            "calls_judged": self.access.judged,
            "calls_denied": self.access.turned_away,
            "streams_ended": self.access.streams_ended,
            "invoices": self.books.money.compared,
        }

    nodes_lost = 0

    # -- attaching

    def attach(self) -> None:
        """Listen to everything."""
        world = self._world
        world.store.on_durable = self.durable
        world.store.on_prune = self._pruned
        world.network.on_call = self.wire.called
        world.network.on_deliver = self.wire.delivered
        world.network.on_client_sends = self.wire.client_sends
        world.network.on_server_sends = self.wire.server_sends
        world.network.on_answer = self.wire.answered
        world.network.on_enters = self.access.enters
        world.network.on_leaves = self.access.leaves
        world.network.on_refusal = self.access.refused
        for host in world.cluster.hosts:
            host.on_started = self.started
            host.on_defect = self.violation
        for node in world.nodes:
            self.nodes.attach(node)
        self.books.confirmed = self.wire.confirmed
        self.books.freed = self.nodes.freed
        self.books.expired = self._expired
        self.books.energy.drawn_mj = self._drawn_mj

    # -- the journal

    def durable(self, record: Any, epoch: int) -> None:
        """A record has reached the disk."""
        if record.previous != self._last_digest:
            self.violation(f"record of fact {record.first_seq} does not follow the one before it")
        if record.first_seq != self.books.seq + 1:
            self.violation(f"a record starts at {record.first_seq} after {self.books.seq}")
        self._last_digest = record.digest
        self._durable_us.append(self._world.loop.now_us)
        if epoch < self._writer_epoch:
            self.violation(f"leader epoch {epoch} writes after {self._writer_epoch}")
        facts = _decode(record.payload)
        self._count(facts, epoch)
        if epoch > self._writer_epoch:
            self._writer_epoch = epoch
            if facts[0][0] != "leader" or facts[0][2] != epoch:
                self.violation(f"the first fact of leader epoch {epoch} is {facts[0][:3]}")
        for wrong in self.books.group(facts):
            self.violation(wrong)
        self.access.durable(facts)

    def _count(self, facts: list[list[Any]], epoch: int) -> None:
        for fact in facts:
            self.facts[fact[0]] += 1
            if self.verbose:
                self.note(f"fact by {epoch}: {fact}")
            if fact[0] == "leader":
                self.leads_since_us = self._world.loop.now_us
                self.leader_address = current().host.host
            elif fact[0] in ("queued", "ended", "releasing"):
                self.lease_operations += 1
                if fact[0] == "queued":
                    self._queued_us[fact[2]] = self._world.loop.now_us
            elif fact[0] == "nstate" and fact[3] == LOST:
                self.nodes_lost += 1

    def _pruned(self, seq: int) -> None:
        """Records are dropped: the snapshot before the newest must hold what they said, should that be damaged."""
        held = [snapshot_seq(encoded) for encoded, _ in self._world.store.snapshots if encoded]
        if len(self._world.store.snapshots) < 2 or seq > min(held, default=0):
            self.violation(f"records up to fact {seq} are dropped, which the snapshots of {held} do not hold both")

    def _expired(self, story: Story) -> str:
        """A lease may expire only when nobody has named it for its TTL, counted anew from each take-over."""
        now_us = self._world.loop.now_us
        called_us = self.wire.waits_since_us(story.tenant, story.key)
        # While a disk stalls, somebody may ask between the decision and the moment at which it is durable.
        if called_us is not None and self.decided_after_us - called_us > EXPIRY_SLACK_MS * 1000:
            return f"{story.lease_id} expires although a caller waits for it"
        if not story.ttl_ms:
            return f"{story.lease_id} is detached, but expires"
        queued_us = self._queued_us.get(story.lease_id, 0)
        since_us = max(self.wire.kept_us.get(story.lease_id, 0), self.leads_since_us, queued_us)
        quiet_ms = (now_us - since_us) // 1000
        ended_us, quiet_us = self.wire.quiet_us.get(story.lease_id, (0, 0))
        if ended_us >= self.decided_after_us:  # it was named when its end was decided, but not durable yet
            quiet_ms = max(quiet_ms, quiet_us // 1000)
        if quiet_ms < story.ttl_ms - EXPIRY_SLACK_MS:
            return f"{story.lease_id} expires {quiet_ms} ms after it was named, with a TTL of {story.ttl_ms} ms"
        return ""

    # -- coordinators

    def started(self, host: CoordinatorHost) -> None:
        """A coordinator serves: what it shows must be what is durable."""
        self.note(f"{host.host} leads")
        self.leads_since_us = self._world.loop.now_us
        self.access.started()
        self._compare(host, "after its start")

    def look(self) -> None:
        """Regularly: does the leader show what is durable?"""
        leader = self._world.cluster.leader
        if leader.serving and leader.alive:
            self._compare(leader, "now")
            self._compare_holds(leader)
            overdue = self.books.windows.overdue() or self.books.quotas.windows.overdue()
            if overdue:
                self.violation(overdue)
            stuck = self.books.health.stuck(self._world.now_s())
            if stuck:
                self.violation(stuck)

    def _compare_holds(self, host: CoordinatorHost) -> None:
        """A hold without an owner that waits would keep devices from everybody, for ever."""
        state = host.leading.writer.state if host.leading is not None else None
        if state is not None and state.seq == self.books.seq and state.holds.keys() != self.books.holds.keys():
            wrong = min(state.holds.keys() ^ self.books.holds.keys())
            self.violation(f"{host.host} has other holds than are durable: {wrong}")
        if state is not None and state.seq == self.books.seq and state.keys != self.books.keys:
            differ = state.keys.items() ^ self.books.keys.items()
            self.violation(f"{host.host} knows other keys than are durable: {min(differ)}")

    def _compare(self, host: CoordinatorHost, when: str) -> None:
        view = host.coordinator.view if host.coordinator is not None else None
        if view is None or view.seq > self.books.seq:
            if view is not None:
                self.violation(f"{host.host} shows fact {view.seq}, but only {self.books.seq} are durable")
            return
        if view.seq != self.books.seq:
            return  # it has not heard yet, or does not lead any more
        shown = {lease_id for lease_id, lease in view.leases.items() if not lease.ended_ms}
        living = {lease_id for lease_id, story in self.books.stories.items() if not story.ended}
        if shown != living:
            self.violation(f"{host.host} {when} shows other leases than are durable: {sorted(shown ^ living)[:3]}")
            return
        for lease_id in shown:
            pieces = self.books.stories[lease_id].pieces
            held = {p.slice_id: p for p in view.leases[lease_id].slices if int(p.state) not in (6, 7)}
            if held.keys() != pieces.keys():
                self.violation(
                    f"{host.host} {when} shows other slices of {lease_id}: {sorted(held)} for {sorted(pieces)}"
                )
            for slice_id, piece in pieces.items():
                plan = held[slice_id].plan if slice_id in held else None
                if plan is not None and (plan.device_uuid, plan.share_milli, plan.memory_bytes) != (
                    piece.uuid,
                    piece.share,
                    piece.memory,
                ):
                    self.violation(f"{host.host} {when} shows another {slice_id}")

    # -- the end

    def unsettled(self) -> str | None:
        """What is still to come to its end; None: nothing."""
        world, books = self._world, self.books
        if books.living:
            story = next(story for story in books.stories.values() if not story.ended)
            return f"{books.living} leases live, such as {_tell(story)}"
        for launcher in world.launchers:
            if launcher.process.alive:
                waiting = next((asked for asked in launcher.asked if not asked.ended), None)
                if waiting is not None:
                    said = waiting.lease_id or launcher.last_failure
                    return f"{launcher.host} still waits for {waiting.key} ({said})"
        for machine in books.machines.values():
            if machine.state != READY and not machine.agentless:
                return f"{machine.node_id} is in state {machine.state}"
            node = world.node(machine.node_id)
            if node is not None and node.devices.keys() != machine.devices.keys():
                return f"{node.node_id} has {len(node.devices)} devices, but {len(machine.devices)} are known"
        return self.nodes.unsettled()

    def final(self) -> None:
        """Faults have stopped and there was time: everything must have come to its end."""
        left = self.unsettled()
        if left is not None:
            self.violation(f"it does not come to rest: {left}")
        for uuid, card in self.books.cards.items():
            if card.share or card.memory:
                self.violation(f"{uuid} still holds {card.share} milli and {card.memory} bytes")
        self.look()
        self.followers.final(self._world.followers)
        self._check_bill()
        missing = self.books.money.used.keys() - self.wire.billed
        if missing:
            self.violation(f"tenant {min(missing)} could not have its last invoice")

    def _check_bill(self) -> None:
        """What the ledger says was used is what was held and confirmed, to the byte and the millisecond."""
        leading = self._world.cluster.leader.leading
        state = leading.writer.state if leading is not None else None
        if state is None or state.seq != self.books.seq:
            return
        folded = state.ledger.folded()
        for tenant in sorted(self.books.money.used.keys() | state.ledger.by_tenant.keys() | state.ledger.hours.keys()):
            billed, used = [0, 0], [0, 0]
            for entry in state.ledger.by_tenant.get(tenant, ()):
                billed[0] += entry.share_milli * (entry.to_ms - entry.from_ms)
                billed[1] += entry.memory_bytes * (entry.to_ms - entry.from_ms)
            for _, sums in folded.get(tenant, ()):
                billed[0] += sums.share_milli_ms
                billed[1] += sums.memory_byte_ms
            for interval in self.books.money.used.get(tenant, ()):
                used[0] += interval.share * (interval.to_ms - interval.from_ms)
                used[1] += interval.memory * (interval.to_ms - interval.from_ms)
            if billed != used:
                self.violation(f"tenant {tenant} used {used} milli*ms and byte*ms, but is charged {billed}")


def snapshot_seq(encoded: bytes) -> int:
    """The last fact that a snapshot holds."""
    return int(_decode(encoded)["seq"])


def _tell(story: Story) -> str:
    pieces = ", ".join(_piece(piece) for piece in story.pieces.values())
    return f"{story.lease_id} (epoch {story.epoch}, {story.ending or 'not ending'}, {pieces or 'waiting'})"


def _piece(piece: Piece) -> str:
    return f"{piece.slice_id} {piece.state}{' unreachable' if piece.unreachable else ''} on {piece.node_id}"
