"""From durable records to messages; `requests` and `nodes` read messages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from aliquot.common.fields import Writer
from aliquot.common.tiers import BESIDE_TIERS, Tier
from aliquot.common.utilisation import status_of
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState, Slice
from aliquot.coordinator.core.books.use import NO_USE, LeaseUse
from aliquot.coordinator.core.commands.outcomes import Explained
from aliquot.coordinator.core.known.use_windows import Efficiency
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand, RequestSpec, Shortfall, SlicePlan
from aliquot.coordinator.reading.usage import Measured, ObservedUse
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire.hiding import Sees, shown_id, shown_ids, shown_text
from aliquot.coordinator.wire.serving import plain, serve_of
from aliquot.v1 import types_pb2

_MEASURED = ("efficiency_permille", "efficiency_p95_permille", "known_permille", "score_permille", "utilisation")

USE = Writer(
    types_pb2.LeaseUse,
    LeaseUse,
    {"action": lambda use, _: use.action.value if use.warned else ""},
    left_out=dict.fromkeys(_MEASURED, "see `add_measured`"),
)


def add_measured(
    message: types_pb2.LeaseUse, lease: Lease, efficiency: Efficiency | None, observed: ObservedUse
) -> None:
    """What a lease makes of its share, where that is known, and the score that dashboards know."""
    if lease.current:
        score = observed.score(lease)
        message.utilisation = status_of(score)
        if score is not None:
            message.score_permille = round(score * 10)
    if efficiency is not None:
        message.efficiency_permille = efficiency.median_permille
        message.efficiency_p95_permille = efficiency.p95_permille
        message.known_permille = efficiency.known_permille


SLICES_NAMED_MAX = 4
_LOOKED_UP = "looked up where the message is made"
_NOT_HERE = "only in answers that say so, whose service adds it"


class Told(NamedTuple):
    """To whom something is told: what can be looked up, and which leases may be named; None: all."""

    view: View
    sees: Sees | None


def _models(demand: Demand) -> list[types_pb2.ModelSet]:
    return [types_pb2.ModelSet(any_of=models) for models in demand.models]


def _without_a_start(lease_ids: Iterable[str], told: Told) -> str:
    """Why no start is told: who would have to give back what no time limit ends, as far as that may be known."""
    view, sees = told
    holders: dict[str, list[str]] = {}
    for lease_id in lease_ids:
        lease = view.leases.get(lease_id)
        is_told = lease is not None and (sees is None or sees(lease))
        whose = f"tenant {lease.request.tenant} gives" if lease is not None and is_told else "others give"
        holders.setdefault(whose, []).append(lease_id if is_told else "")
    named = [f"{whose} back {_some(ids) if ids[0] else 'what they hold'}" for whose, ids in holders.items()]
    return f"not known, waits until {_and(named)} (no time limit)" if named else ""


def _and(parts: list[str]) -> str:
    return " and ".join(parts[:2]) + (f" and {len(parts) - 2} more do" if len(parts) > 2 else "")


def _may_share_a_card(demand: Demand) -> bool:
    in_parts = bool(demand.mig_profile) or demand.share_milli != WHOLE_SHARE_MILLI
    return in_parts and demand.gang_size > 1 and not demand.apart


_REQUEST = Writer(
    types_pb2.LeaseRequest,
    RequestSpec,
    {
        "spec": ("demand", Writer(types_pb2.GpuSpec, Demand, {"models": lambda demand, _: _models(demand)})),
        "node_selector": lambda spec, _: plain(spec.demand.node_selector),
        "serve": lambda spec, _: serve_of(spec.demand.node_selector),
        "topology": lambda spec, _: spec.demand.topology + 1,  # the contract's 0 is "unset"
        "detached": lambda spec, _: spec.ttl_ms == 0,
        "same_card": lambda spec, _: _may_share_a_card(spec.demand),
    },
    parts=("demand",),
    left_out={"gpu": "`spec` is the text resolved", "no_queue": "it was decided by when the request came"},
)


@lru_cache(maxsize=4096)
def request_message(spec: RequestSpec) -> types_pb2.LeaseRequest:
    """A request with its text resolved. Shared by all leases with the same request: never change it."""
    return _REQUEST.message(spec)


_NOT_THEIRS = "it is not theirs to know"
_SLICE = Writer(
    types_pb2.Slice,
    Slice,
    parts=("plan",),
    left_out={
        "node_name": _LOOKED_UP,
        "device_model": _LOOKED_UP,
        "mig_profile": _LOOKED_UP,
        "observed_bytes": _NOT_HERE,
        "observed_utilisation_percent": _NOT_HERE,
        "observed_ms": _NOT_HERE,
        "served": _NOT_HERE,
        "tier_notes": _NOT_HERE,
    },
)
_LEASE = Writer(
    types_pb2.Lease,
    Lease,
    {
        "request": lambda lease, _: request_message(lease.request),
        "asked_by": "by",
        "use": (lambda lease, _: lease.use if lease.use != NO_USE else None, USE),
    },
    left_out={"secret": _NOT_HERE, "waiting": _NOT_HERE, "set_aside": _NOT_HERE, "redacted": "see `redacted`"},
)
_REDACTED = Writer(
    types_pb2.Lease,
    Lease,
    {
        **{name: name for name in ("lease_id", "state", "lease_epoch", "seq")},
        "slices": Writer(
            types_pb2.Slice,
            Slice,
            parts=("plan",),
            left_out={**_SLICE.left_out, "reason": _NOT_THEIRS, "lender": _NOT_THEIRS},
        ),
    },
    rest=_NOT_THEIRS,
)
_PLAN = Writer(
    types_pb2.Slice,
    SlicePlan,
    {name: name for name in ("node_id", "device_uuid", "share_milli", "memory_bytes")},
    rest="nothing is there yet",
)
_EXPLANATION = Writer(
    types_pb2.Explanation,
    Explained,
    {
        "summary": lambda explained, told: shown_text(explained.summary, *told),
        "ahead": lambda explained, told: shown_ids(explained.ahead, *told),
        "placement": lambda explained, told: _placement_messages(explained, told),  # noqa: PLW0108 - defined below
        "placement_note": lambda explained, _: explained.placement.note if explained.placement is not None else "",
        "would_preempt": lambda explained, told: shown_ids(explained.would_preempt, *told),
        "expected_start_ms": lambda explained, _: explained.expected_start_ms or None,
        "start_unknown": lambda explained, told: _without_a_start(explained.waits_for, told),
        "notes": lambda explained, told: [shown_text(note, *told) for note in explained.notes],
        "instead": lambda explained, _: explained.instead and request_message(explained.instead),
    },
    left_out={"earliest_start_ms": "see `forecasts`", "latest_start_ms": "see `forecasts`"},
)
_SHORTFALL = Writer(
    types_pb2.Explanation,
    Shortfall,
    {name: name for name in ("impossible", "summary", "missing")},
    rest="a refusal waits for nothing",
)


def lease_message(
    lease: Lease, view: View, sees: Sees | None, *, observed: ObservedUse | None = None
) -> types_pb2.Lease:
    """A lease as launchers see it; where `observed` is given, with what its slices really use, and why no stronger tier
    holds them. `sees`: which other leases may be named in it; None: all.
    """
    message = types_pb2.Lease()
    write_lease(message, lease, view, sees, observed=observed)
    return message


def write_lease(
    message: types_pb2.Lease,
    lease: Lease,
    view: View,
    sees: Sees | None,
    *,
    secret: str = "",
    observed: ObservedUse | None = None,
) -> None:
    """The same into an empty message. In place, because protobuf copies a message into another by encoding it."""
    _LEASE.write(message, lease)
    message.secret = secret
    if sees is not None:
        message.end_detail = shown_text(lease.end_detail, view, sees)
        message.note = shown_text(lease.note, view, sees)
    for slot, piece in zip(message.slices, lease.slices, strict=True):
        _name_place(slot, view)
        if sees is not None:
            slot.reason = shown_text(piece.reason, view, sees)
            if piece.plan.lender:
                slot.lender = shown_id(piece.plan.lender, view, sees)
        if observed is not None:
            _add_use(slot, observed.latest(piece.slice_id))
            if (served := observed.served(piece.slice_id)) is not None:
                slot.served.CopyFrom(served)
            slot.tier_notes.extend(observed.tier_notes.of(piece.slice_id))
    if observed is not None:
        running = [drawn for piece in lease.holding if (drawn := observed.drawn_mj(piece.slice_id)) is not None]
        if running:
            message.energy_mj += sum(running)


def redacted(lease: Lease, view: View) -> types_pb2.Lease:
    """A lease as those see it who may not see its tenant's: what it holds and where, not whose it is or what for."""
    message = _REDACTED.message(lease)
    message.redacted = True
    for slot in message.slices:
        _name_place(slot, view)
    return message


def _add_use(message: types_pb2.Slice, measured: Measured | None) -> None:
    if measured is None:
        return
    message.observed_ms = measured.at_ms
    if measured.memory_bytes is not None:
        message.observed_bytes = measured.memory_bytes
    if measured.utilisation_percent is not None:
        message.observed_utilisation_percent = measured.utilisation_percent


def _name_place(message: types_pb2.Slice, view: View) -> None:
    """What is known of the node and the device of a slice."""
    node = view.nodes.get(message.node_id)
    use = view.totals.devices.get(message.device_uuid)
    if node is not None:
        message.node_name = node.spec.name
    if use is not None:
        message.device_model = use.spec.model
        message.mig_profile = use.spec.mig_profile


def explanation_message(explained: Explained, view: View, sees: Sees | None) -> types_pb2.Explanation:
    """Why a request would be granted, waits or is refused. `sees`: which leases may be named; None: all."""
    message = types_pb2.Explanation()
    _EXPLANATION.write(message, explained, Told(view, sees))
    return message


def explanation_of_shortfall(shortfall: Shortfall) -> types_pb2.Explanation:
    """The same for a refusal."""
    return _SHORTFALL.message(shortfall)


def notes_on_tiers(slices: Iterable[types_pb2.Slice]) -> list[str]:
    """What each slice is held by and why by no stronger tier, what its share is worth, why nothing serves it. Slices
    of which the same holds share a line.
    """
    alike: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    plain: dict[str, list[str]] = {}
    for piece in slices:
        on_tiers = tuple(note for note in piece.tier_notes if not note.startswith(BESIDE_TIERS))
        if on_tiers:
            alike.setdefault((piece.tier, on_tiers), []).append(piece.slice_id)
        for note in piece.tier_notes:
            if note.startswith(BESIDE_TIERS):
                plain.setdefault(note, []).append(piece.slice_id)
    return [f"{note} ({_some(slice_ids)})" for note, slice_ids in plain.items()] + [
        f"held by {Tier(tier).word}, by no stronger tier because {'; '.join(notes)} ({_some(slice_ids)})"
        for (tier, notes), slice_ids in alike.items()
        if tier in list(Tier) and tier != Tier.NONE  # of a whole device nobody needs to be kept off
    ]


def _some(slice_ids: list[str]) -> str:
    shown = ", ".join(slice_ids[:SLICES_NAMED_MAX])
    return shown if len(slice_ids) <= SLICES_NAMED_MAX else f"{shown} and {len(slice_ids) - SLICES_NAMED_MAX} more"


def _placement_messages(explained: Explained, told: Told) -> list[types_pb2.Slice]:
    messages = []
    for member, plans in enumerate(explained.placement.members if explained.placement is not None else ()):
        for plan in plans:
            messages.append(_PLAN.message(plan))
            messages[-1].member = member
            _name_place(messages[-1], told.view)
    return messages


def lost_reason(lease: Lease | None) -> str:
    """Why a keep-alive can't keep this lease; empty when it can."""
    if lease is None:
        return "LEASE_NOT_FOUND"
    if lease.end_reason == "EXPIRED":
        return "LEASE_EXPIRED"
    if lease.ended or (lease.ending and not lease.requeue):
        return "LEASE_ENDED"
    return ""


def preempting_deadline_ms(lease: Lease) -> int:
    """When a lease that was asked to give way is stopped; 0: it was not."""
    if lease.state is not LeaseState.PREEMPTING and not lease.requeue:
        return 0
    return max((piece.deadline_ms for piece in lease.slices), default=0)
