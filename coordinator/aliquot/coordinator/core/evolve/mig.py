"""Orders to cut cards, as facts change them: on the node's record, and on the devices that go for them."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.books.nodes import CutOrdered, CutSettled, Node
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.types import Cut, CutState


def _cut_ordered(state: State, fact: CutOrdered) -> None:
    _put(state, fact.node_id, fact.cut)
    keep(state, state.nodes[fact.node_id])


def _cut_settled(state: State, fact: CutSettled) -> None:
    node = state.nodes[fact.node_id]
    cut = next(cut for cut in node.cuts if cut.card_uuid == fact.card_uuid)
    for uuid in cut.lost_uuids:
        if state.inventory.has_device(uuid):
            state.inventory.withhold(uuid, "")
    done = not fact.problem
    settled = replace(
        cut,
        state=CutState.DONE if done else CutState.FAILED,
        settled_ms=fact.at_ms,
        problem=fact.problem,
        failures=0 if done else cut.failures + 1,
    )
    _put(state, fact.node_id, settled)
    state.free_capacity()


def _put(state: State, node_id: str, cut: Cut) -> None:
    node = state.nodes[node_id]
    others = tuple(other for other in node.cuts if other.card_uuid != cut.card_uuid)
    state.nodes[node_id] = replace(node, cuts=(*others, cut), seq=state.seq)
    state.touched.nodes[node_id] = None


def keep(state: State, node: Node) -> None:
    """Place nothing on what is about to go; remember who has cards."""
    for uuid, owner in withheld(node).items():
        if state.inventory.has_device(uuid):
            state.inventory.withhold(uuid, owner)
    if node.spec.cards:
        state.cutting[node.spec.node_id] = None
    else:
        state.cutting.pop(node.spec.node_id, None)


def withheld(node: Node) -> dict[str, str]:
    """Devices that an order under way removes, and what they are withheld for: no lease, so no hold can use them."""
    under_way = [cut for cut in node.cuts if cut.state is CutState.ORDERED]
    return {uuid: f"the cut of {cut.card_uuid}" for cut in under_way for uuid in cut.lost_uuids}


def _index(state: State) -> None:
    for node in state.nodes.values():
        keep(state, node)


SUBJECT = Subject(
    name="mig",
    apply=by_kind(_cut_ordered, _cut_settled),
    index=_index,
)
