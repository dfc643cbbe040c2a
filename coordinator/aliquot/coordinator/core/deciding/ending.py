"""How a lease ends, fails or goes back to its queue: the rules that all other decisions share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from aliquot.coordinator.core.books.leases.facts import (
    LeaseEnded,
    LeaseReleasing,
    LeaseRequeued,
    LeasesForgotten,
    SliceFailed,
    SliceGone,
    SlicesReleasing,
)
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState, lease_id_of
from aliquot.coordinator.core.commands import Release
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding import elastic as resizing
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import EndReason


def release(known: Known, command: Release, now_ms: int) -> Decision[None]:
    """End a lease. One that has ended, or is ending for good, is left as it is."""
    lease = known.lease(command.lease_id)
    if lease.ended or (lease.ending and not lease.requeue):
        return NOTHING
    facts = end(known, lease, command.reason, now_ms, detail=command.detail, by=command.by, exit_code=command.exit_code)
    return Decision(tuple(facts))


def end(
    known: Known,
    lease: Lease,
    reason: EndReason,
    now_ms: int,
    *,
    detail: str = "",
    grace_ms: int | None = None,
    by: str = "",
    exit_code: int | None = None,
) -> list[Fact]:
    """Facts that end a lease for good: at once where nothing is held, else when its agents have confirmed."""
    given_up = holding.give_up_of(known, lease.lease_id, now_ms, "the lease it was for has ended")
    if not lease.holding:
        if reason is EndReason.RELEASED:
            reason = EndReason.CANCELLED
        return [*given_up, LeaseEnded(now_ms, lease.lease_id, reason, detail, by)]
    grace_ms = lease.request.grace_ms if grace_ms is None else grace_ms
    deadline_ms = now_ms + grace_ms
    if lease.ending:  # whoever was told to go gets no more time by giving up
        deadline_ms = min([deadline_ms, *(piece.deadline_ms for piece in lease.holding if piece.deadline_ms)])
    notice = LeaseReleasing(now_ms, lease.lease_id, reason, detail, deadline_ms, by=by, exit_code=exit_code)
    last = LeaseEnded(now_ms, lease.lease_id, reason, detail, by)
    return [*given_up, notice, *_unconfirmed(known, lease.holding, now_ms, last)]


def _unconfirmed(known: Known, told: Sequence[Slice], now_ms: int, last: Fact | None = None) -> list[Fact]:
    """Facts for those of the slices that were told to go whose end nobody will confirm: they are gone at once, and
    where these are all, `last` follows.
    """
    gone = [piece for piece in told if is_agentless(known, piece)]
    facts: list[Fact] = [SliceGone(now_ms, lease_id_of(piece.slice_id), piece.slice_id) for piece in gone]
    return [*facts, last] if last is not None and len(gone) == len(told) else facts


def send_back(known: Known, lease: Lease, reason: EndReason, now_ms: int, *, detail: str, grace_ms: int) -> list[Fact]:
    """Facts that end a lease's grant and, when its slices are gone, return it to its queue at its old place. One that
    was put on a place ends then, and may be reprieved until then like any other.
    """
    notice = LeaseReleasing(now_ms, lease.lease_id, reason, detail, deadline_ms=now_ms + grace_ms, requeue=True)
    last = _concluded(lease, reason, detail, now_ms, requeue=True)
    return [notice, *_unconfirmed(known, lease.holding, now_ms, last)]


def leave(known: Known, lease: Lease, there: list[Slice], detail: str, grace_ms: int, now_ms: int) -> list[Fact]:
    """Facts that end what a lease holds in a place that closes, with its own grace where `grace_ms` is 0.

    An elastic lease goes on without it where it can; a preemptible or movable one goes back to its queue.
    """
    if lease.ending or lease.waiting:
        return []
    grace_ms = grace_ms or lease.request.grace_ms
    fewer = resizing.go_on_without(known, lease, there, detail, now_ms, notice_ms=grace_ms) if there else []
    if fewer is not None:
        return fewer
    if lease.request.preemptible or lease.request.movable:
        return send_back(known, lease, EndReason.DRAINED, now_ms, detail=detail, grace_ms=grace_ms)
    return end(known, lease, EndReason.DRAINED, now_ms, detail=detail, grace_ms=grace_ms)


def shorten_notice(lease: Lease, now_ms: int, grace_ms: int) -> Fact:
    """The fact that cuts the notice of a lease that is ending already to `grace_ms`."""
    return LeaseReleasing(
        at_ms=now_ms,
        lease_id=lease.lease_id,
        reason=EndReason(lease.end_reason),
        detail=lease.end_detail,
        deadline_ms=now_ms + grace_ms,
        requeue=lease.requeue,
    )


def conclude(
    known: Known,
    lease: Lease,
    gone: Iterable[str],
    failed: Mapping[str, tuple[str, str]],
    now_ms: int,
    drawn_mj: Mapping[str, int | None] = MappingProxyType({}),
) -> list[Fact]:
    """Facts for slices of one lease that hold nothing any more, and what follows for the lease.

    `failed` maps slice ids to (reason, detail), `drawn_mj` to the energy that was measured. A slice that ends while its
    lease is ending is simply gone. Otherwise one failed slice takes its siblings along: a lease that was never active
    goes back to its queue and avoids that device for a while; one that was active ends, because only its launcher can
    know what to do without the device. One that would not keep to its limit ends as that in any case, also where it
    could go on with fewer slices, or where it is ending already for another reason.
    """
    gone = set(gone)
    facts: list[Fact] = []
    for piece in lease.holding:
        if piece.slice_id in gone or (piece.slice_id in failed and piece.ending):
            energy_mj = drawn_mj.get(piece.slice_id)
            facts.append(SliceGone(now_ms, lease.lease_id, piece.slice_id, energy_mj=energy_mj))
        elif piece.slice_id in failed:
            energy_mj = drawn_mj.get(piece.slice_id)
            reason, detail = failed[piece.slice_id]
            facts.append(
                SliceFailed(
                    at_ms=now_ms,
                    lease_id=lease.lease_id,
                    slice_id=piece.slice_id,
                    reason=reason,
                    detail=detail,
                    energy_mj=energy_mj,
                )
            )
    over = gone | failed.keys()
    left = [piece for piece in lease.holding if piece.slice_id not in over]
    greedy = next(
        (piece for piece in lease.holding if failed.get(piece.slice_id, ("",))[0] == EndReason.OVER_LIMIT), None
    )
    if lease.ending:
        # To give it back in the last moment spares nobody what follows from having exceeded it.
        if greedy is not None and lease.end_reason != EndReason.OVER_LIMIT:
            return facts + _give_up(known, lease, left, EndReason.OVER_LIMIT, _story(greedy, failed), now_ms)
        if not left:
            why = EndReason(lease.end_reason)
            facts.append(_concluded(lease, why, lease.end_detail, now_ms, requeue=lease.requeue))
        return facts
    lost = [piece for piece in lease.holding if piece.slice_id in failed and not piece.ending]
    if not lost or lease.waiting:
        return facts
    worst = greedy or lost[0]
    reason, story = failed[worst.slice_id][0], _story(worst, failed)
    if reason == EndReason.OVER_LIMIT:
        return facts + _give_up(known, lease, left, EndReason.OVER_LIMIT, story, now_ms)
    fewer = resizing.go_on_without(known, lease, lost, reason, now_ms)
    if fewer is not None:
        return facts + fewer
    if lease.active_ms or lease.failures >= known.config.requeues_max:
        return facts + _give_up(known, lease, left, EndReason.FAILED, story, now_ms)
    return facts + retry_elsewhere(known, lease, left, [piece.plan.device_uuid for piece in lost], story, now_ms)


def _story(piece: Slice, failed: Mapping[str, tuple[str, str]]) -> str:
    reason, detail = failed[piece.slice_id]
    return f"{reason} on device {piece.plan.device_uuid}" + (f": {detail}" if detail else "")


def _concluded(lease: Lease, reason: EndReason, detail: str, now_ms: int, *, requeue: bool) -> Fact:
    """What becomes of a lease whose last slice is gone. Whoever chose its place decides where it goes next, too."""
    if requeue and not lease.request.placed:
        return LeaseRequeued(at_ms=now_ms, lease_id=lease.lease_id, reason=reason)
    return LeaseEnded(at_ms=now_ms, lease_id=lease.lease_id, reason=reason, detail=detail)


def _give_up(known: Known, lease: Lease, left: list[Slice], reason: EndReason, story: str, now_ms: int) -> list[Fact]:
    """Facts that end a lease which lost a slice; `left` are those that still hold something."""
    if not left:
        return [LeaseEnded(at_ms=now_ms, lease_id=lease.lease_id, reason=reason, detail=story)]
    notice = LeaseReleasing(now_ms, lease.lease_id, reason, story, deadline_ms=now_ms + lease.request.grace_ms)
    last = LeaseEnded(at_ms=now_ms, lease_id=lease.lease_id, reason=reason, detail=story)
    return [notice, *_unconfirmed(known, left, now_ms, last)]


def retry_elsewhere(
    known: Known, lease: Lease, left: list[Slice], avoid: list[str], story: str, now_ms: int
) -> list[Fact]:
    """Give up a grant that did not come up: its slices go, the lease waits again and avoids those devices. One that was
    put on a place ends.
    """
    if lease.request.placed:
        return _give_up(
            known, lease, left, EndReason.FAILED, f"{story}; it was asked for there and nowhere else", now_ms
        )
    facts: list[Fact] = []
    siblings = [piece for piece in left if not piece.ending or resizing.on_notice(piece)]
    if siblings:
        slice_ids = tuple(piece.slice_id for piece in siblings)
        facts = [SlicesReleasing(now_ms, lease.lease_id, slice_ids, story), *_unconfirmed(known, siblings, now_ms)]
    config = known.config
    backoff_ms = min(config.requeue_backoff_ms << min(lease.failures, 16), config.requeue_backoff_max_ms)
    facts.append(
        LeaseRequeued(
            at_ms=now_ms,
            lease_id=lease.lease_id,
            reason=story,
            not_before_ms=now_ms + backoff_ms,
            avoid_device_uuids=tuple(sorted(set(avoid))),
        )
    )
    return facts


def is_agentless(known: Known, piece: Slice) -> bool:
    """Whether nobody will ever confirm this slice, because its node has no agent."""
    return known.nodes[piece.plan.node_id].spec.agentless


def _time_limit(known: Known, lease_id: str, now_ms: int) -> list[Fact]:
    lease = known.leases.get(lease_id)
    if lease is None or lease.ended or lease.ending or lease.waiting:
        return []
    due_ms = lease.granted_ms + lease.request.time_limit_ms
    if not lease.request.time_limit_ms:
        return []
    if due_ms > now_ms:  # granted again since
        return []
    return end(known, lease, EndReason.TIME_LIMIT, now_ms, detail=f"{lease.request.time_limit_ms} ms")


def _confirm(known: Known, lease_id: str, now_ms: int) -> list[Fact]:
    """A grant that its agents have not confirmed: try elsewhere. Agentless nodes never confirm, and need not."""
    lease = known.leases.get(lease_id)
    if lease is None or lease.ended or lease.ending or lease.waiting:
        return []
    if lease.active_ms:
        return resizing.unconfirmed(known, lease, now_ms)
    if lease.granted_ms + known.config.confirm_timeout_ms > now_ms:  # granted again since
        return []
    silent = [
        piece
        for piece in lease.holding
        if (piece.resume or piece.state) is SliceState.GRANTED and not is_agentless(known, piece)
    ]
    if not silent:
        return []
    story = f"not confirmed by the agent of {silent[0].plan.node_id} in {known.config.confirm_timeout_ms} ms"
    if lease.failures >= known.config.requeues_max:
        return end(known, lease, EndReason.FAILED, now_ms, detail=story)
    avoid = [piece.plan.device_uuid for piece in silent]
    return retry_elsewhere(known, lease, list(lease.holding), avoid, story, now_ms)


def _forget(known: Known, _: str, now_ms: int) -> list[Fact]:
    """Drop ended leases that are old enough, or too many. At most 1,000 a step."""
    config = known.config
    known.memory.forget_due_ms = 0
    surplus = len(known.ended) - config.retain_ended_max
    old: list[str] = []
    for lease_id in known.ended:
        overdue = known.leases[lease_id].ended_ms + config.retain_ended_ms <= now_ms
        if len(old) == 1000 or not (overdue or len(old) < surplus):
            break
        old.append(lease_id)
    if not old:
        return []  # when the oldest is due is looked up anew
    known.memory.forgot_ms = now_ms
    return [LeasesForgotten(at_ms=now_ms, lease_ids=tuple(old))]


DECIDES = Decides(
    commands=by_kind(release), due={Due.TIME_LIMIT: _time_limit, Due.CONFIRM: _confirm, Due.FORGET: _forget}
)
