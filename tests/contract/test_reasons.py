"""Reasons of errors are words for programs: one that was given out keeps its meaning, whatever its class is called.

After a change: `python -m tests.contract.test_reasons` writes the list anew.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from aliquot.common.errors import AliquotError

COMMITTED = Path(__file__).with_name("reasons.txt")
MODULES = (
    *("common.errors", "coordinator.errors", "coordinator.core.values.errors", "client._errors"),
    *("agent.local.errors", "remote.errors", "kube.api.errors"),
)


def reasons() -> list[str]:
    """Every class of errors with its reason."""
    found = []
    for name in MODULES:
        module = importlib.import_module(f"aliquot.{name}")
        found += [
            f"{name}.{each.__name__} {each.reason}"
            for each in vars(module).values()
            if isinstance(each, type) and issubclass(each, AliquotError) and each.__module__ == module.__name__
        ]
    return sorted(found)


def test_reasons_are_those_that_are_committed() -> None:
    assert reasons() == COMMITTED.read_text().splitlines(), "python -m tests.contract.test_reasons writes them anew"


def test_a_class_that_states_none_has_its_name_as_reason() -> None:
    class NoRoomLeftError(AliquotError):
        pass

    class NodeGone(NoRoomLeftError):
        reason = "NODE_LEFT"

    assert (NoRoomLeftError.reason, NodeGone.reason) == ("NO_ROOM_LEFT", "NODE_LEFT")


if __name__ == "__main__":
    COMMITTED.write_text("\n".join(reasons()) + "\n")
