"""Where the time of a program on remote devices went, from counts and times of both ends; and what to change.

Pure: what measures is `aliquot.remote.torch.profiling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

_PLACES_SHOWN = 8
_SHARE_WORTH_A_WORD = 0.1


@dataclass(frozen=True, slots=True)
class Place:
    """A line at which the program has stood still."""

    what: str
    """`.item()`, `.cpu()`, the name of an operator."""
    file: str
    line: int
    waits: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What was counted of one device while it was profiled. Times are seconds."""

    device: str
    served_by: str
    """`cpu` or `cuda`."""
    elapsed_s: float
    steps: int
    """Optimizer steps, or what the program says; 0: not known."""
    round_trip_s: float
    """Of an empty request, at its best."""
    operators: int
    waits: int
    waited_s: float
    held_s: float
    """The program was as far ahead as it may be."""
    sent_bytes: int
    received_bytes: int
    busy_s: float
    """The server had something to do."""
    within_s: float
    """Of that in operators: computing on a CPU, launching on a GPU."""
    device_s: float
    """Of that waiting for a GPU."""
    places: Sequence[Place]

    @property
    def wire_s(self) -> float:
        """Of the time waited, what the way there and back takes."""
        return min(self.waited_s, self.waits * self.round_trip_s)

    @property
    def for_server_s(self) -> float:
        """Of the time waited, what the server was not through with."""
        return self.waited_s - self.wire_s + self.held_s

    @property
    def here_s(self) -> float:
        """The program's own time, issuing included."""
        return max(0.0, self.elapsed_s - self.waited_s - self.held_s)

    def as_dict(self) -> dict[str, object]:
        """Everything, for JSON."""
        derived = {"here_s": self.here_s, "wire_s": self.wire_s, "for_server_s": self.for_server_s}
        return asdict(self) | derived | {"advice": self.advice()}

    def advice(self) -> list[str]:
        """What to change, the largest first; empty where nothing stands out."""
        said: list[str] = []
        if self.elapsed_s <= 0:
            return said
        if self.waited_s / self.elapsed_s >= _SHARE_WORTH_A_WORD and self.waits > max(1, self.steps):
            place = max(self.places, key=lambda each: each.waits, default=None)
            if place is not None:
                said.append(
                    f"{self._often(place.waits)}: {place.what} at {_short(place)}. Read results after several steps, "
                    "or by .to('cpu', non_blocking=True) and later"
                )
        if self.here_s / self.elapsed_s > 0.5 and self.busy_s < 0.5 * self.elapsed_s:
            said.append(
                "the program's own time is most of it, and the server stands by: torch.compile(backend='aliquot'), or "
                "capture(step), issues less"
            )
        elif self.busy_s > 0.9 * self.elapsed_s:
            said.append("the server is busy all the time: a larger part, or less work, is what helps")
        return said

    def table(self) -> str:
        """For people."""
        per = self.steps or 1
        unit = "a step" if self.steps else "in all"
        rows = [
            ("here: the program, issuing included", self.here_s),
            (f"on the wire: {self.waits / per:.4g} waits of {self.round_trip_s * 1e3:.3g} ms", self.wire_s),
            ("waiting for the server", self.for_server_s),
        ]
        there = [("the server was busy", self.busy_s)]
        if self.served_by == "cpu":
            there.append(("  computing", self.within_s))
        else:
            there += [("  in operators", self.within_s), ("  waiting for the GPU", self.device_s)]
        steps = f"{self.steps} steps" if self.steps else "no steps seen"
        lines = [f"{self.device} (served by {self.served_by}): {self.elapsed_s:.3f} s, {steps}", ""]
        lines += [f"  {name:<46} {self._amount(seconds, per)}" for name, seconds in rows]
        lines.append(f"  {unit + ', altogether':<46} {self._amount(self.elapsed_s, per)}")
        lines.append("")
        lines += [f"  {name:<46} {self._amount(seconds, per)}" for name, seconds in there]
        moved = f"{self.sent_bytes / per:.0f} bytes up and {self.received_bytes / per:.0f} down"
        lines += ["", f"  {self.operators / per:.0f} operators, {moved} {unit}"]
        shown = sorted(self.places, key=lambda each: -each.waited_s)[:_PLACES_SHOWN]
        lines += [
            f"  {self._often(place.waits)}, {place.waited_s / per * 1e3:.2f} ms: {place.what} at {_short(place)}"
            for place in shown
        ]
        if len(self.places) > len(shown):
            lines.append(f"  and waits at {len(self.places) - len(shown)} more lines")
        return "\n".join([*lines, *(f"  → {advice}" for advice in self.advice())])

    def _amount(self, seconds: float, per: int) -> str:
        share = seconds / self.elapsed_s if self.elapsed_s else 0.0
        return f"{seconds / per * 1e3:10.3f} ms {share:7.1%}"

    def _often(self, waits: int) -> str:
        return f"{waits / self.steps:.4g} waits a step" if self.steps else f"{waits} waits"


def _short(place: Place) -> str:
    if not place.file:
        return "a line that is not known"
    return f"{place.file.rpartition('/')[2]}:{place.line}"
