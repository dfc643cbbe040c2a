"""The demonstration's report: steps with a title, and claims that are checked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from aliquot.cli._out import Out
from aliquot.common.errors import AliquotError

_LOOK_AGAIN_S = 0.1


class StepFailed(AliquotError):
    """A claim of the demonstration did not hold."""


@dataclass(slots=True)
class Step:
    """One step and what it showed."""

    title: str
    ok: bool = False
    took_s: float = 0.0
    claims: list[str] = field(default_factory=list)
    """What held."""
    failure: str = ""


class Story:
    """Prints the steps, checks their claims, and remembers the results."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._started = time.monotonic()
        self.steps: list[Step] = []

    @property
    def took_s(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    @property
    def ok(self) -> bool:
        """Whether all claims so far held."""
        return bool(self.steps) and all(step.ok for step in self.steps)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Run one step. An error in it fails the step and ends the demonstration."""
        step = Step(title)
        self.steps.append(step)
        self.show(Text(), Text(f"{len(self.steps)}. {title}", "bold cyan"))
        started = time.monotonic()
        try:
            yield step
            step.ok = True
        except AliquotError as error:
            step.failure = error.message
            raise
        finally:
            step.took_s = round(time.monotonic() - started, 2)

    def tell(self, text: str) -> None:
        """Say what is being done."""
        self.show(Text(f"  {text}"))

    def claim(self, what: str, *, holds: bool, otherwise: str = "") -> None:
        """Check something that must be true now. Raises `StepFailed`."""
        if not holds:
            self.show(Text.assemble(("  ✗ ", "bold red"), what))
            raise StepFailed(f"{what}: it is not so{f' ({otherwise})' if otherwise else ''}")
        self.steps[-1].claims.append(what)
        self.show(Text.assemble(("  ✓ ", "bold green"), what))

    def await_claim(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for something that must become true. Raises `StepFailed`."""
        deadline = time.monotonic() + timeout_s
        while not (holds := condition()) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        self.claim(what, holds=holds, otherwise=f"not within {timeout_s:g} s")

    def show(self, *things: RenderableType) -> None:
        """Show something."""
        self._out.show(*things)

    def indent(self, thing: RenderableType) -> None:
        """Show a table, indented like the text."""
        self.show(Padding(thing, (0, 0, 0, 2), expand=False))
