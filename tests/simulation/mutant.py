"""What a deliberately broken variant of production code is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from aliquot.coordinator.core.commands.outcomes import Decision

Put = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake."""

    name: str
    mistake: str
    apply: Callable[[Put], None]
    size: str = "small"
    """Of the pools in which it can show."""
    kinds: tuple[str, ...] = ()
    """Of the faults in which it can show; none: any may do it."""
    often: int = 3
    """How much more often these happen."""
    scene: str = ""
    """A script in which it shows at once (`stage`), played before the seeds; empty: any seed will do."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """For the length of a block."""
        with ExitStack() as stack:
            self.apply(lambda *a, **k: stack.enter_context(mock.patch.object(*a, **k)))
            yield


MUTANTS: list[Mutant] = []


def mutant(
    name: str,
    mistake: str,
    *,
    size: str = "small",
    kinds: tuple[str, ...] = (),
    often: int = 3,
    scene: str = "",
) -> Callable[[Callable[[Put], None]], Callable[[Put], None]]:
    """Register one."""

    def register(apply: Callable[[Put], None]) -> Callable[[Put], None]:
        MUTANTS.append(Mutant(name, mistake, apply, size, kinds, often, scene))
        return apply

    return register


def decide_by(put: Put, command: str, decide: Callable[..., Decision[Any]]) -> None:
    """Let another function decide about a kind of command."""
    from aliquot.coordinator.core import commands
    from aliquot.coordinator.core import decide as package

    put(package, "_DECIDE", {**package._DECIDE, getattr(commands, command): decide})
