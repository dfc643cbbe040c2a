"""One lease's life as its facts tell it: read in the journal, where a fail-over has left all of them.

Facts are told in order, so where a lease's begin is found by their times, and only those up to its last change are
read. What was compacted away is told as far as the lease's own record knows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Final

import msgspec

from aliquot.common.duration import format_duration_ms
from aliquot.coordinator.core.books.elastic import LeaseGrown, LeaseShrinking, ShapeAcknowledged, SlicesKept
from aliquot.coordinator.core.books.health.records import LeaseTold
from aliquot.coordinator.core.books.holds import LeaseReprieved
from aliquot.coordinator.core.books.leases.facts import (
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseQueued,
    LeaseReleasing,
    LeaseRequeued,
    SliceActive,
    SliceFailed,
    SliceGone,
    SliceGrant,
    SlicesAdopted,
    SlicesReleasing,
)
from aliquot.coordinator.core.books.leases.records import Lease, lease_id_of
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.writing.journal.base import Group, Journal

FACTS_MAX: Final = 500_000
"""So many are read at most."""
STEPS_MAX: Final = 1_000
_NEAR: Final = 512
"""From so few facts on, reading them all is quicker than looking for the first."""


class Step(msgspec.Struct, frozen=True):
    """One fact about a lease, for people."""

    at_ms: int
    what: str
    """A stable word."""
    detail: str = ""
    seq: int = 0
    """The number of the fact; 0: it was compacted away, and the lease's record tells of it."""


class Story(msgspec.Struct, frozen=True):
    """All of them, in order."""

    steps: tuple[Step, ...]
    complete: bool
    """Whether they are told from the first on, and none is left out."""


def story_of(journal: Journal, lease: Lease) -> Story:
    """Read it. Takes up to some seconds: for a thread of its own. Raises JournalUnavailable, JournalCorrupt."""
    steps: list[Step] = []
    cut = False
    for seq, fact in _facts(journal, _beginning(journal, lease), lease.seq):
        if len(steps) == STEPS_MAX:
            cut = True
            break
        if (told := step_of(fact, lease.lease_id)) is not None:
            steps.append(Step(fact.at_ms, *told, seq))
    whole = bool(steps) and steps[0].what == "QUEUED"
    if not whole:
        known = (
            (lease.created_ms, "QUEUED"),
            (lease.granted_ms, "GRANTED"),
            (lease.active_ms, "ACTIVE"),
            (lease.ended_ms, "ENDED"),
        )
        steps[:0] = [Step(at_ms, what) for at_ms, what in known if at_ms and (not steps or at_ms < steps[0].at_ms)]
    last_seq = max((step.seq for step in steps), default=0)
    return Story(tuple(steps), whole and not cut and last_seq <= lease.seq)


def _facts(journal: Journal, after_seq: int, last_seq: int) -> Iterator[tuple[int, Fact]]:
    read = 0
    with contextlib.closing(_groups(journal, after_seq)) as groups:
        for group in groups:
            for number, fact in enumerate(group.facts):
                yield group.first_seq + number, fact
            read += len(group.facts)
            if group.last_seq >= last_seq or read > FACTS_MAX:
                return


def _beginning(journal: Journal, lease: Lease) -> int:
    """A number such that all of the lease's facts come after it."""
    low, high = 0, lease.seq
    while high - low > _NEAR:
        middle = (low + high) // 2
        with contextlib.closing(_groups(journal, middle)) as groups:
            first = next(groups, None)
        if first is None or first.facts[0].at_ms >= lease.created_ms:
            high = middle
        else:
            low = middle
    return low


def _groups(journal: Journal, after_seq: int) -> Generator[Group, None, None]:
    for stored in journal.groups(after_seq):
        yield stored.group


def step_of(fact: Fact, lease_id: str) -> tuple[str, str] | None:
    """The word and the details of a fact about this lease; None: it says nothing of it."""
    if isinstance(fact, SlicesAdopted):
        kept = [slice_id for slice_id in fact.slice_ids if lease_id_of(slice_id) == lease_id]
        return ("ADOPTED", f"{fact.node_id} is back with {_listed(kept)}") if kept else None
    if getattr(fact, "lease_id", None) != lease_id:
        return None
    return _of_the_whole(fact) or _of_parts(fact)


def _of_the_whole(fact: Fact) -> tuple[str, str] | None:
    match fact:
        case LeaseQueued():
            return "QUEUED", _sentence(fact.request.gpu_text, f"asked by {fact.by}" if fact.by else "")
        case LeaseGranted():
            return "GRANTED", _sentence(f"grant {fact.lease_epoch}", _places(fact.slices), fact.note)
        case LeaseRequeued():
            return "REQUEUED", _sentence(fact.reason, "to another place" if fact.moved else "")
        case LeaseReleasing():
            word = "PREEMPTED" if fact.requeue else "RELEASING"
            code = "" if fact.exit_code is None else f"exit code {fact.exit_code}"
            return word, _sentence(str(fact.reason), fact.detail, code, f"by {fact.by}" if fact.by else "")
        case LeaseEnded():
            return "ENDED", _sentence(str(fact.reason), fact.detail, f"by {fact.by}" if fact.by else "")
        case LeaseExtended():
            limit = f"time limit {format_duration_ms(fact.time_limit_ms)}"
            return "EXTENDED", _sentence(limit, fact.reason, f"by {fact.by}" if fact.by else "")
        case LeaseReprieved():
            return "REPRIEVED", "what it holds is not needed any more"
        case _:
            return None


def _of_parts(fact: Fact) -> tuple[str, str] | None:
    match fact:
        case SliceActive():
            return "ACTIVE", _sentence(fact.slice_id, f"served at {fact.endpoint}" if fact.endpoint else "")
        case SliceFailed():
            return "FAILED", _sentence(fact.slice_id, fact.reason, fact.detail)
        case SliceGone():
            return "GONE", fact.slice_id
        case SlicesReleasing():
            return "GIVING_BACK", _sentence(_listed(fact.slice_ids), fact.reason)
        case LeaseGrown():
            return "GROWN", _places(fact.slices)
        case LeaseShrinking():
            return "SHRINKING", _listed(fact.slice_ids)
        case SlicesKept():
            return "KEPT", _listed(fact.slice_ids)
        case ShapeAcknowledged():
            return "ACKNOWLEDGED", "its launcher knows its shape"
        case LeaseTold():
            return "WARNED", fact.text
        case _:
            return None


def _places(slices: Sequence[SliceGrant]) -> str:
    return _listed([f"{piece.plan.device_uuid} of {piece.plan.node_id}" for piece in slices])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _sentence(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
