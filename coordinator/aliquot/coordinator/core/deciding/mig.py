"""Whether cards in MIG mode are cut anew for somebody who waits, on nodes that let the coordinator do so.

A request that no part fits, and that no quota holds back, is given the smallest change of one card (or of several) with
which it fits: by profile, or by share or memory where MIG instances serve it (`placement.matching`). What keeps cards
from being cut to and fro: a request must have waited for a while, a card rests after each cut, longer after each that
failed, a node has the orders of one request at a time, and idle parts of the profile that is wanted are never given up.
The agent has the last word: it touches nothing in use, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.nodes import CutOrdered, CutSettled, Node
from aliquot.coordinator.core.commands import ReportCut
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import offer
from aliquot.coordinator.core.rules.mig import (
    LayoutChange,
    MigNode,
    as_profiles,
    left,
    plan,
)
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import Cut, CutState, Demand, NodeState

HEADS_MAX = 64
"""Lines of equal requests that one look considers."""
NODES_MAX = 32
"""Nodes that one look considers; the next look goes on with others."""
BACKOFF_MAX_MS = 3_600_000


def look(known: Known, _: str, now_ms: int) -> list[Fact]:
    """Order at most one request's cuts; give up an order that was not answered. Comes again by itself."""
    known.memory.cuts_due_ms = 0
    if not known.cutting:
        return []
    known.memory.cuts_due_ms = now_ms + known.config.cut_look_ms
    known.memory.timers.add(known.memory.cuts_due_ms, Due.CUT, "")
    facts = _overdue(known, now_ms)
    if facts:
        return facts
    for lease in _waiting(known, now_ms):
        cuts = _for(known, lease, now_ms)
        if cuts:
            return cuts
    number = len(known.cutting)
    known.memory.cuts_turn = (known.memory.cuts_turn + NODES_MAX) % number if number > NODES_MAX else 0
    return []


def report(known: Known, command: ReportCut, now_ms: int) -> Decision[None]:
    """An agent reports on an order. Ignored where that order is not under way."""
    node = known.nodes.get(command.node_id)
    if node is None or node.session_epoch != command.session_epoch:
        return NOTHING
    for cut in node.cuts:
        if (cut.card_uuid, cut.number, cut.state) == (command.card_uuid, command.number, CutState.ORDERED):
            return Decision((_settled(node, cut, command.problem, now_ms),))
    return NOTHING


def notes(known: Known, lease: Lease, demand: Demand, now_ms: int) -> list[str]:
    """For people: what is done, or could be, to cut cards as a waiting request needs."""
    profiles = as_profiles(known, demand) if known.cutting else ()
    if not profiles:
        return []
    said = []
    for node_id in known.cutting:
        node = known.nodes.get(node_id)
        for cut in node.cuts if node is not None else ():
            where = f"{cut.card_uuid} on {node.spec.name}" if node is not None else cut.card_uuid
            if cut.state is CutState.ORDERED and cut.lease_id == lease.lease_id:
                said.append(f"{where} is being cut for it, since {(now_ms - cut.ordered_ms) // 1000} s")
            elif cut.state is CutState.FAILED and _rests_until(known, cut) > now_ms:
                again_s = (_rests_until(known, cut) - now_ms) // 1000
                said.append(f"{where} could not be cut: {cut.problem}; that may be tried again in {again_s} s")
    if said:
        return said
    cuts = _plan(known, profiles, now_ms)
    if not cuts:
        return ["no card was found to be cut for it beside what is in use; those that were just cut rest for a while"]
    where = ", ".join(f"{cut.card.uuid} on {known.nodes[cut.node_id].spec.name}" for cut in cuts)
    patience_s = max(0, lease.created_ms + known.config.cut_patience_ms - now_ms) // 1000
    return [f"{where} could be cut for it, which is done when it has waited {patience_s} s more"]


def _overdue(known: Known, now_ms: int) -> list[Fact]:
    timeout_ms = known.config.cut_timeout_ms
    return [
        _settled(node, cut, f"its agent did not answer within {timeout_ms // 1000} s", now_ms)
        for node_id in known.cutting
        for node in [known.nodes[node_id]]
        for cut in node.cuts
        if cut.state is CutState.ORDERED and cut.ordered_ms + timeout_ms <= now_ms
    ]


def _settled(node: Node, cut: Cut, problem: str, now_ms: int) -> CutSettled:
    return CutSettled(
        at_ms=now_ms, node_id=node.spec.node_id, card_uuid=cut.card_uuid, number=cut.number, problem=problem
    )


def _waiting(known: Known, now_ms: int) -> Iterator[Lease]:
    """The first of each line that profiles serve and that has waited long enough, by priority and rank."""
    heads = sorted(
        (-key.priority, *line[0])
        for tenants in known.lines.queues.values()
        for lines in tenants.values()
        for key, line in lines.lines.items()
        if as_profiles(known, key.demand)
    )
    for _, _, lease_id in heads[:HEADS_MAX]:
        lease = known.leases[lease_id]
        if lease.created_ms + known.config.cut_patience_ms <= now_ms:
            yield lease


def _for(known: Known, lease: Lease, now_ms: int) -> list[Fact]:
    """Orders with which this request would fit; none where one is under way, or where cutting is not what it needs."""
    under_way = (
        cut for node_id in known.cutting for cut in known.nodes[node_id].cuts if cut.lease_id == lease.lease_id
    )
    if any(cut.state is CutState.ORDERED for cut in under_way) or lease.lease_id in known.holds:
        return []
    demand = lease.request.demand.avoiding(lease.avoid_device_uuids)
    found = offer(known, lease.request, demand, now_ms, preempted_at_ms=lease.preempted_at_ms)
    if found.placement is not None or found.over is not None:
        return []
    facts: list[Fact] = []
    for cut in _plan(known, as_profiles(known, demand), now_ms):
        last = next((old for old in known.nodes[cut.node_id].cuts if old.card_uuid == cut.card.uuid), None)
        order = Cut(
            # Also above the numbers of orders from before the books were begun anew.
            number=max(now_ms, last.number + 1 if last is not None else 0),
            card_uuid=cut.card.uuid,
            parts=cut.parts,
            lost_uuids=tuple(part.uuid for part in cut.lost if part.uuid),
            lease_id=lease.lease_id,
            ordered_ms=now_ms,
            failures=last.failures if last is not None else 0,
        )
        facts.append(CutOrdered(at_ms=now_ms, node_id=cut.node_id, cut=order))
    return facts


def _plan(known: Known, profiles: tuple[Demand, ...], now_ms: int) -> tuple[LayoutChange, ...]:
    """The cuts for the first of these that can have any."""
    return next((cuts for each in profiles if (cuts := plan(_mig_nodes(known, each, now_ms), each))), ())


def _mig_nodes(known: Known, demand: Demand, now_ms: int) -> list[MigNode]:
    """Nodes whose cards may be cut now, with what is in use there."""
    nodes: list[MigNode] = []
    node_ids, turn = list(known.cutting), known.memory.cuts_turn
    for node_id in (*node_ids[turn:], *node_ids[:turn]):
        if len(nodes) == NODES_MAX:
            break
        node = known.nodes.get(node_id)
        if node is None or not node.grantable or node.state is not NodeState.READY:
            continue
        if any(cut.state is CutState.ORDERED for cut in node.cuts):
            continue
        resting = {cut.card_uuid for cut in node.cuts if _rests_until(known, cut) > now_ms}
        record = known.inventory.node(node_id)
        cards = [
            (card, frozenset(part.uuid for part in card.parts if part.uuid and _in_use(known, part.uuid)))
            for card in node.spec.cards
            if card.uuid not in resting
        ]
        spec = left(node.spec, record.cpu_left_milli, record.host_memory_left_bytes)
        nodes.append(MigNode(spec, tuple(cards), record.groups.get(demand.affinity_group, 0)))
    return nodes


def _in_use(known: Known, uuid: str) -> bool:
    if not known.inventory.has_device(uuid):
        return True
    record = known.inventory.device_record(uuid)
    return bool(record.slices or record.withheld_for or record.foreign_bytes or record.admits or not record.healthy)


def _rests_until(known: Known, cut: Cut) -> int:
    doubled = max(0, min(cut.failures - 1, 16))
    rest_ms = min(known.config.cut_rest_ms << doubled, max(BACKOFF_MAX_MS, known.config.cut_rest_ms))
    return cut.settled_ms + rest_ms


DECIDES = Decides(commands=by_kind(report), due={Due.CUT: look})
