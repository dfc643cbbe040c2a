"""How maintenance windows change the State: the windows themselves, and the nodes that they close and open."""

from __future__ import annotations

from aliquot.coordinator.core.books.maintenance import (
    MaintenanceDeclared,
    MaintenanceEnded,
    MaintenanceMoved,
    Phase,
    Window,
)
from aliquot.coordinator.core.evolve import saving
from aliquot.coordinator.core.evolve.nodes import note_closure, set_node
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due


def _declared(state: State, fact: MaintenanceDeclared) -> None:
    _put(state, Window(fact.spec, fact.phase, fact.starts_ms, fact.ends_ms))


def _moved(state: State, fact: MaintenanceMoved) -> None:
    _put(state, Window(state.windows[fact.name].spec, fact.phase, fact.starts_ms, fact.ends_ms))


def _ended(state: State, fact: MaintenanceEnded) -> None:
    window = state.windows.pop(fact.name)
    state.touched.plans = True
    _forget(state, window)
    _close_and_open(state, window)


def _put(state: State, window: Window) -> None:
    old = state.windows.get(window.spec.name)
    if old is not None:
        _forget(state, old)
    state.windows[window.spec.name] = window
    state.touched.plans = True
    watch(state, window)
    if window.phase is not Phase.PLANNED or (old is not None and old.phase is not Phase.PLANNED):
        _close_and_open(state, window)


def _close_and_open(state: State, window: Window) -> None:
    """Close or open every node of the window. What may be placed changes, also for requests that end in time.

    Some 30 µs a node, in one go: windows change a few times a week.
    """
    for node in list(state.nodes.values()):
        if window.spec.covers(node.spec):
            set_node(state, node)
    state.free_capacity()


def _forget(state: State, window: Window) -> None:
    state.timers.drop(window.due_ms, Due.MAINTENANCE, window.spec.name)


def watch(state: State, window: Window) -> None:
    """Look at a window when its next phase is due."""
    state.timers.add(window.due_ms, Due.MAINTENANCE, window.spec.name)


def _index(state: State) -> None:
    """When windows are looked at, and which nodes they close. Whether anything runs there is known by now."""
    for window in state.windows.values():
        watch(state, window)
    for node in state.nodes.values():
        note_closure(state, node)


SUBJECT = Subject(
    name="maintenance",
    apply=by_kind(_declared, _moved, _ended),
    saves=(saving.records("windows", Window, "windows", key="spec.name"),),
    index=_index,
)
