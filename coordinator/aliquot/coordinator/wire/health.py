"""The health of cards between messages and the core: signs and results from agents, incidents for readers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from aliquot.common.fields import Writer
from aliquot.common.names import plain_text
from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.books.health.records import UNITS_MAX, WORDS, CareOrder, Sign, Step
from aliquot.coordinator.core.deciding.answers.health import HealthReport, IncidentView
from aliquot.v1 import agent_pb2, pool_pb2, types_pb2

CAUSE_CHARS_MAX = 64
TEXT_CHARS_MAX = 256
UUID_CHARS_MAX = 128
RESULTS_MAX = 64
HITS_MAX = 64
OPEN_SHOWN_MAX = 1_000
_Kind = TypeVar("_Kind", Severity, Scope, Remedy)


def read_remedies(words: Iterable[str]) -> tuple[str, ...]:
    """What an agent says it can do about sick cards. What a newer one can do besides is left out."""
    return tuple(sorted(set(words) & set(WORDS.values())))


def read_sign(message: types_pb2.Sign, reason: str) -> Sign:
    """What an agent says is wrong with a device. What only a newer one knows counts as the worst that is known here."""
    return Sign(
        cause=plain_text(message.cause, CAUSE_CHARS_MAX),
        severity=_known(Severity, message.severity),
        scope=_known(Scope, message.scope, Scope.CARD),
        remedy=_known(Remedy, message.remedy, Remedy.SERVICE),
        reason=plain_text(reason, TEXT_CHARS_MAX),
    )


def _known(kind: type[_Kind], number: int, otherwise: _Kind | None = None) -> _Kind:
    try:
        return kind(number)
    except ValueError:
        return max(kind) if otherwise is None else otherwise


def read_copies(message: types_pb2.CareResult) -> tuple[tuple[str, int], ...]:
    """How fast the cards that were tested copy."""
    known = ((plain_text(each.uuid, UUID_CHARS_MAX), each.mb_per_s) for each in message.copies[:UNITS_MAX])
    return tuple(sorted({uuid: rate for uuid, rate in known if uuid and rate}.items()))


sign_message = Writer(types_pb2.Sign, Sign).message
"""A sign as readers see it; its reason stands beside it."""
_step_message = Writer(pool_pb2.IncidentStep, Step).message
_CARE = Writer(
    agent_pb2.Care,
    CareOrder,
    {
        "leader_epoch": lambda _, epochs: epochs[0],
        "session_epoch": lambda _, epochs: epochs[1],
        "uuids": lambda order, _: order.units[:UNITS_MAX],
    },
)
_INCIDENT = Writer(
    pool_pb2.Incident,
    IncidentView,
    {
        "uuids": lambda view, _: view.incident.units[:UNITS_MAX],
        "opened_by": "incident.by",
        "steps": lambda view, with_story: map(_step_message, view.incident.steps if with_story else ()),
    },
    parts=("incident",),
)


def care_message(order: CareOrder, leader_epoch: int, session_epoch: int) -> agent_pb2.Care:
    """The message for cards that an agent is to do something about."""
    return _CARE.message(order, (leader_epoch, session_epoch))


_CAUSE = Writer(
    pool_pb2.CauseTotal,
    tuple,
    {
        "cause": lambda named, _: named[0],
        "incidents": lambda named, _: named[1].incidents,
        "out_ms": lambda named, _: named[1].out_ms,
    },
)
_HEALTH = Writer(
    pool_pb2.Health,
    HealthReport,
    {
        "open": (lambda report, _: report.open[:OPEN_SHOWN_MAX], _INCIDENT),
        "closed": _INCIDENT,
        "causes": ("totals", _CAUSE),
        "open_count": lambda report, _: len(report.open),
    },
    left_out={
        "unknown_slices": "agents hold them, and the books know nothing of them",
        "conditions": "of the coordinator's own, which are in no books",
    },
)


def health_message(report: HealthReport) -> pool_pb2.Health:
    """What is wrong in the pool, and how long that takes to mend."""
    return _HEALTH.message(report, report.with_story)


def incident_message(view: IncidentView, *, with_story: bool) -> pool_pb2.Incident:
    """One incident."""
    return _INCIDENT.message(view, with_story)
