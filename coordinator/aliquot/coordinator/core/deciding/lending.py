"""Balancing between projects: planned, shown, and carried out on request or by the pool's own policy.

A project is a tenant; its nodes are those whose label (`Balancing.label`) is its name. A move gives the node the
borrower's label and moves as much of the lender's guarantee as the node can carry; running leases are not touched, and
limits are not moved.
"""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.books.nodes import Node, NodePut
from aliquot.coordinator.core.books.tenancy.limits import over_limit
from aliquot.coordinator.core.books.tenancy.loans import NodeLent
from aliquot.coordinator.core.books.tenancy.specs import Amount, Balancing, PoolSpec
from aliquot.coordinator.core.commands import Balance
from aliquot.coordinator.core.commands.outcomes import BalanceView, Decision, ProjectView
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.planning import Planning
from aliquot.coordinator.core.rules.granting import chain_of, least_held, suspended
from aliquot.coordinator.core.rules.lending import NodeTransfer, Project, ProjectNode, plan
from aliquot.coordinator.core.values.errors import InvalidField
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.timers import Due

HEADS_MAX = 16
"""Kinds of waiting requests of one tenant and queue that are looked at for how long they have waited."""


def balance(known: Planning, command: Balance, now_ms: int) -> Decision[BalanceView]:
    """The plan for a pool, or that nodes named in `home` go home instead; with `carry_out` these moves are made."""
    spec = _spec_of(known, command.pool)
    projects = _projects(known, command.pool, spec, now_ms)
    found = plan(projects, spec, now_ms)
    moves = tuple(_going_home(known, command.pool, node_id) for node_id in command.home) or found.moves
    view = BalanceView(
        pool=command.pool,
        spec=spec,
        projects=tuple(
            ProjectView(
                project.name,
                tuple(node.node_id for node in project.nodes),
                tuple(node.node_id for node in project.nodes if node.home),
                project.use_permille(),
                project.waited_ms,
            )
            for project in projects
        ),
        moves=moves,
        notes=found.notes,
        log=tuple(move for move in known.node_moves if move.pool == command.pool),
        carried_out=command.carry_out,
    )
    if not command.carry_out:
        return Decision((), view)
    return Decision(tuple(fact for move in moves for fact in _carry_out(known, spec, command.pool, move, now_ms)), view)


def look(known: Planning, pool: str, now_ms: int) -> list[Fact]:
    """What is due for a pool whose policy is to balance by itself."""
    if known.memory.balance_due_ms.get(pool, now_ms + 1) > now_ms:
        return []  # an older entry: there is a later one
    known.memory.balance_due_ms.pop(pool, None)
    declared = known.tenancy.pools.get(pool)
    if declared is None or not declared.spec.balancing.auto:
        return []
    spec = declared.spec.balancing
    known.look_for_balance(pool, now_ms + spec.every_ms)
    moves = plan(_projects(known, pool, spec, now_ms), spec, now_ms).moves
    return [fact for move in moves for fact in _carry_out(known, spec, pool, move, now_ms)]


def _spec_of(known: Planning, pool: str) -> Balancing:
    spec: PoolSpec | None = known.tenancy.pools[pool].spec if pool in known.tenancy.pools else None
    if spec is None or not spec.balancing.label:
        raise InvalidField(
            "pool",
            f"pool {pool!r} does not say by which label its nodes serve projects",
            hint="declare `balancing: {label: project}` for it, and label its nodes",
        )
    return spec.balancing


def _projects(known: Planning, pool: str, spec: Balancing, now_ms: int) -> list[Project]:
    nodes: dict[str, list[ProjectNode]] = {}
    for node_id, node in known.nodes.items():
        name = dict(node.spec.labels).get(spec.label, "")
        if name and node.spec.pool == pool:
            nodes.setdefault(name, []).append(_node(known, node_id, node))
    waited = _waited(known, spec, pool, set(nodes), now_ms)
    return [Project(name, tuple(nodes[name]), waited.get(name, 0)) for name in sorted(nodes)]


def _node(known: Planning, node_id: str, node: Node) -> ProjectNode:
    record = known.inventory.node(node_id)
    loan = known.tenancy.loans.get(node_id)
    free = (
        node.grantable
        and not known.slice_ids_by_node[node_id]
        and not any(device.spec.uuid in known.hold_of_device for device in record.devices)
    )
    return ProjectNode(
        node_id=node_id,
        capacity_milli=sum(d.spec.compute_milli for d in record.devices if d.healthy and d.present),
        used_milli=sum(device.share_used_milli for device in record.devices),
        free=free,
        home=loan.home if loan is not None else "",
        moved_ms=known.node_moved_ms.get(node_id, 0),
    )


def _waited(known: Planning, spec: Balancing, pool: str, names: set[str], now_ms: int) -> dict[str, int]:
    """The longest wait of each project, among requests that another node of the project could help: they ask for its
    nodes, and no limit and no budget keeps them waiting.
    """
    found: dict[str, int] = {}
    for tenants in known.lines.queues.values():
        for name in names & tenants.keys():
            for _, lease_id, _ in tenants[name].heads[:HEADS_MAX]:
                lease = known.leases[lease_id]
                demand = lease.request.demand
                if (spec.label, name) not in demand.node_selector or demand.pool not in ("", pool):
                    continue
                if suspended(known, lease.request, now_ms) is not None:
                    continue
                chain = chain_of(known, lease.request)
                if over_limit(chain, least_held(known, demand)) is None:
                    found[name] = max(found.get(name, 0), now_ms - lease.created_ms)
    return found


def _going_home(known: Planning, pool: str, node_id: str) -> NodeTransfer:
    node = known.node(node_id)
    loan = known.tenancy.loans.get(node.spec.node_id)
    if loan is None or node.spec.pool != pool:
        raise InvalidField("home", f"node {node_id!r} is not lent to anybody in pool {pool}")
    return NodeTransfer(node.spec.node_id, loan.borrower, loan.home, loan.home, "an administrator asked for it")


def _carry_out(known: Planning, spec: Balancing, pool: str, move: NodeTransfer, now_ms: int) -> list[Fact]:
    node = known.nodes[move.node_id]
    labels = tuple(sorted({**dict(node.spec.labels), spec.label: move.borrower}.items()))
    moved = Amount()
    if move.home == move.lender:
        moved = _movable(known, move)
    fact = NodeLent(
        at_ms=now_ms,
        node_id=move.node_id,
        pool=pool,
        label=spec.label,
        lender=move.lender,
        borrower=move.borrower,
        home=move.home,
        guaranteed=moved,
        reason=move.reason,
    )
    return [NodePut(at_ms=now_ms, spec=replace(node.spec, labels=labels), registered=False), fact]


def _movable(known: Planning, move: NodeTransfer) -> Amount:
    """How much of the lender's guarantee goes along: what the node can carry. Guarantees by model stay."""
    quota = known.tenancy.account("t", move.lender).quota
    if any(model.guaranteed for model in quota.models):
        return Amount()
    devices = [device for device in known.inventory.node(move.node_id).devices if device.present]
    return Amount(
        min(quota.guaranteed.share_milli, sum(device.spec.compute_milli for device in devices)),
        min(quota.guaranteed.memory_bytes, sum(device.spec.leasable_bytes for device in devices)),
    )


DECIDES = Decides(
    commands={
        Balance: balance,
    },
    due={
        Due.BALANCE: look,
    },
)
