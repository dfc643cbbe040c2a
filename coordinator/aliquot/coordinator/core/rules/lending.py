"""Which nodes one project should lend to another: a plan made of numbers alone.

Every node that carries the pool's label serves one project. A project whose nodes are much busier than another's, or
that has had somebody wait for long, borrows an idle node of the idlest that has more than it must keep; a borrowed node
goes home when the difference is small again, and at once when its home is the busier one or waits.

It does not oscillate: a node rests between two moves; what is lent must leave the borrower's old use above the lender's
new use by half the threshold, and a node goes home only when the borrower without it is within that same half.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aliquot.coordinator.core.books.tenancy.specs import Balancing


class ProjectNode(NamedTuple):
    """A node that serves a project."""

    node_id: str
    capacity_milli: int
    used_milli: int
    free: bool
    """Nothing is held or kept on it, and it is open: it can change hands without anybody noticing."""
    home: str
    """The project that lent it; empty: it is at home."""
    moved_ms: int
    """When it last changed hands; 0: never."""


class Project(NamedTuple):
    """A project, its nodes, and the longest wait of a request that is over no limit."""

    name: str
    nodes: tuple[ProjectNode, ...]
    waited_ms: int

    def use_permille(self, without: int = 0, more: int = 0) -> int:
        """How much of its nodes is leased, if they were so much less, or more (in share_milli)."""
        capacity = sum(node.capacity_milli for node in self.nodes) - without + more
        used = sum(node.used_milli for node in self.nodes)
        return min(1000, used * 1000 // capacity) if capacity > 0 else 1000


class NodeTransfer(NamedTuple):
    """One node changes hands."""

    node_id: str
    lender: str
    borrower: str
    home: str
    """The project that it belongs to. Equal to `borrower` where it goes home."""
    reason: str


class BalancePlan(NamedTuple):
    """What to do now, and why no more: at most one move a look, because use must be measured again before the next."""

    moves: tuple[NodeTransfer, ...]
    notes: tuple[str, ...]


def plan(projects: Sequence[Project], spec: Balancing, now_ms: int) -> BalancePlan:
    """The next move, if any. Changes nothing."""
    if len(projects) < 2:
        return BalancePlan((), ("fewer than two projects have nodes with this label",))
    notes: list[str] = []
    move = _back_to_a_busy_home(projects, spec, now_ms) or _lend(projects, spec, now_ms, notes)
    move = move or _back_from_who_is_idle(projects, spec, now_ms)
    return BalancePlan((move,) if move is not None else (), tuple(notes) if move is None else ())


def _waits(project: Project, spec: Balancing) -> bool:
    return project.waited_ms >= spec.waited_ms


def _rested(node: ProjectNode, spec: Balancing, now_ms: int) -> bool:
    return not node.moved_ms or now_ms - node.moved_ms >= spec.rest_ms


def _back_to_a_busy_home(projects: Sequence[Project], spec: Balancing, now_ms: int) -> NodeTransfer | None:
    """A lender that needs its node has it back even while the borrower's leases run there: they then borrow."""
    by_name = {project.name: project for project in projects}
    for holder in projects:
        lent = [node for node in holder.nodes if node.home in by_name and _rested(node, spec, now_ms)]
        for node in sorted(lent, key=lambda node: (node.used_milli, node.node_id)):
            home = by_name[node.home]
            use, mine = home.use_permille(), holder.use_permille(without=node.capacity_milli)
            if _waits(home, spec) and not _waits(holder, spec):
                reason = f"somebody of {home.name} has waited for {home.waited_ms // 1000} s"
            elif use - mine > spec.threshold_permille:
                reason = f"{home.name} uses {_percent(use)}, {holder.name} would use {_percent(mine)}"
            else:
                continue
            return NodeTransfer(node.node_id, holder.name, home.name, home.name, reason)
    return None


def _lend(projects: Sequence[Project], spec: Balancing, now_ms: int, notes: list[str]) -> NodeTransfer | None:
    busy = max(projects, key=lambda p: (_waits(p, spec), p.use_permille(), p.waited_ms, p.name))
    use, waits = busy.use_permille(), _waits(busy, spec)
    others = sorted((p for p in projects if p is not busy), key=lambda p: (p.use_permille(), p.name))
    for idle in others:
        difference = use - idle.use_permille()
        if not waits and difference <= spec.threshold_permille:
            notes.append(f"{busy.name} uses {_percent(use)}, {idle.name} {_percent(idle.use_permille())}: close enough")
            break
        if _waits(idle, spec):
            notes.append(f"{idle.name} waits itself")
            continue
        if len(idle.nodes) <= spec.keep_nodes:
            notes.append(f"{idle.name} has {len(idle.nodes)} nodes and keeps at least {spec.keep_nodes}")
            continue
        free = [node for node in idle.nodes if node.free and not node.home and _rested(node, spec, now_ms)]
        if not free:
            notes.append(f"no node of {idle.name} is free and rested")
            continue
        node = min(free, key=lambda node: (node.capacity_milli, node.node_id))
        after = idle.use_permille(without=node.capacity_milli)
        if after > use or (not waits and use - after <= spec.threshold_permille // 2):
            story = f"would use {_percent(after)} without {node.node_id}: too close to {_percent(use)}"
            notes.append(f"{idle.name} {story}")
            continue
        reason = f"{busy.name} uses {_percent(use)}, {idle.name} {_percent(idle.use_permille())}"
        if waits:
            reason = f"somebody of {busy.name} has waited for {busy.waited_ms // 1000} s; {reason}"
        return NodeTransfer(node.node_id, idle.name, busy.name, idle.name, reason)
    return None


def _back_from_who_is_idle(projects: Sequence[Project], spec: Balancing, now_ms: int) -> NodeTransfer | None:
    by_name = {project.name: project for project in projects}
    for holder in projects:
        if _waits(holder, spec):
            continue
        for node in holder.nodes:
            home = by_name.get(node.home)
            if home is None or not node.free or not _rested(node, spec, now_ms):
                continue
            mine = holder.use_permille(without=node.capacity_milli)
            if mine <= home.use_permille() + spec.threshold_permille // 2:
                reason = f"{holder.name} can do without it: it would use {_percent(mine)}"
                return NodeTransfer(node.node_id, holder.name, home.name, home.name, reason)
    return None


def _percent(permille: int) -> str:
    return f"{permille / 10:g} %"
