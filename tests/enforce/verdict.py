"""What came of an attempt to take more than a lease has, in the words of the table."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """From best to worst."""

    DENIED = "denied"
    KEPT_OFF = "kept off the card"
    """What was too much went to the machine's memory."""
    KILLED = "killed"
    GAP = "known gap"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cell of the table."""

    kind: Kind
    within_ms: int | None = None
    """For KILLED: from the moment it held too much until it had ended."""
    detail: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.KILLED:
            return f"killed within {self.within_ms} ms"
        return f"{self.kind.value}: {self.detail}" if self.kind is Kind.NOT_RUN else self.kind.value


def denied(detail: str = "") -> Verdict:
    """The allocation itself was refused; nobody ever held too much."""
    return Verdict(Kind.DENIED, detail=detail)


def kept_off(detail: str = "") -> Verdict:
    """The card never held too much; the machine's memory did."""
    return Verdict(Kind.KEPT_OFF, detail=detail)


def killed(within_ms: int | None, detail: str = "") -> Verdict:
    """It held too much, and was ended for it; None: it lives."""
    if within_ms is None:
        return Verdict(Kind.GAP, detail=detail or "it was not ended")
    return Verdict(Kind.KILLED, within_ms, detail)


def not_run(why: str) -> Verdict:
    """The attempt can't be made here."""
    return Verdict(Kind.NOT_RUN, detail=why)
