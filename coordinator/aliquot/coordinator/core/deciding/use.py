"""What follows from what leases are seen to do: states, warnings, loans and, where the queue says so, an end."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.use import (
    ENDING,
    EXEMPT_MS_MAX,
    QUIET,
    IdleActed,
    IdleAction,
    IdlePolicy,
    IdleWarned,
    LeaseExempted,
    ShareLent,
    UseChanged,
    UseState,
    WarningTold,
)
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding.borrowing import recall
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.known.use_windows import UseWindows, Window, classify
from aliquot.coordinator.core.rules.use import acts_on, may_lend, policy_of, told_of_all
from aliquot.coordinator.core.values.errors import InvalidField
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.types import EndReason

_WORDS = {
    IdleAction.LEND: "its share will be lent",
    IdleAction.SUSPEND: "it will go back to its queue",
    IdleAction.RELEASE: "it will be ended",
}


def look(known: Known, command: c.LookAtUse, now_ms: int) -> Decision[None]:
    """Judge some leases by what was seen of them since the last look."""
    windows = known.memory.part(UseWindows, UseWindows)
    facts: list[Fact] = []
    for seen in command.leases:
        lease = known.leases.get(seen.lease_id)
        if lease is None or lease.ended or lease.ending or lease.waiting or not lease.active_ms:
            windows.forget(seen.lease_id)
            continue
        window = windows.of(lease.lease_id, lease.lease_epoch)
        length_ms = max((span.length_ms for span in seen.spans), default=0)
        if window.looked_ms:  # also where nobody could look for a while
            length_ms = max(length_ms, now_ms - window.looked_ms)
        kind = classify([piece.slice_id for piece in lease.current], seen.spans, length_ms)
        window.add(now_ms, kind, length_ms, known.config.idle_window_ms)
        if seen.spans:
            share_milli = sum(piece.plan.share_milli for piece in lease.current)
            window.count(share_milli, seen.spans)
        if seen.told > lease.use.told and seen.told <= lease.use.warned:
            facts.append(WarningTold(now_ms, lease.lease_id, seen.told))
        facts += _judge(known, lease, window, now_ms)
    return Decision(tuple(facts), None)


def _judge(known: Known, lease: Lease, window: Window, now_ms: int) -> list[Fact]:
    found, use = window.state(known.config.idle_window_ms), lease.use
    if found is UseState.UNKNOWN and window.settling:
        # A pause, which may become idleness; or windows have begun anew since a take-over: what was so stays so while
        # nothing speaks against it, and nothing follows from it before a whole window was seen again.
        return []
    if found is not use.state:
        facts: list[Fact] = []
        facts.append(UseChanged(now_ms, lease.lease_id, found, window.since_ms))
        if use.lent and (found not in QUIET or (use.lent_memory and found is not UseState.HELD)):
            why = "it does something" if found is UseState.ACTIVE else f"it is {found.name.lower()}"
            facts += recall(known, lease, why, now_ms)
        return facts
    if found in QUIET:
        return _consequences(known, lease, window.known_ms, now_ms)
    return []


def _consequences(known: Known, lease: Lease, idle_ms: int, now_ms: int) -> list[Fact]:
    """At most one step a look: a warning, a loan, or the end that was announced."""
    use = lease.use
    if use.exempt_until_ms > now_ms:
        return recall(known, lease, "it is exempted", now_ms) if use.lent else []
    policy = policy_of(known.tenancy, lease.request.tenant, lease.request.queue)
    if use.warned < len(policy.warn_ms) and idle_ms >= policy.warn_ms[use.warned]:
        return [_warning(lease, policy, idle_ms, now_ms)]
    if acts_on(policy, lease) and idle_ms >= policy.after_ms and told_of_all(policy, lease, now_ms):
        return _act(known, lease, policy, idle_ms, now_ms)
    if not use.lent and may_lend(policy, lease, idle_ms):
        return [ShareLent(now_ms, lease.lease_id, memory=use.state is UseState.HELD)]
    if use.lent and policy.action is not IdleAction.LEND and policy.action not in ENDING:
        return recall(known, lease, "its queue lends nothing any more", now_ms)
    return []


def _warning(lease: Lease, policy: IdlePolicy, idle_ms: int, now_ms: int) -> IdleWarned:
    act_ms = 0 if policy.action is IdleAction.NOTIFY else now_ms + max(0, policy.after_ms - idle_ms)
    told = f"{lease.use.state.name.lower()} for {idle_ms // 60_000} minutes"
    if act_ms:
        told += f": {_WORDS[policy.action]} in {(act_ms - now_ms) // 60_000} minutes unless it does something"
    return IdleWarned(now_ms, lease.lease_id, lease.use.warned + 1, idle_ms, policy.action, act_ms, told)


def _act(known: Known, lease: Lease, policy: IdlePolicy, idle_ms: int, now_ms: int) -> list[Fact]:
    facts: list[Fact] = [IdleActed(now_ms, lease.lease_id, policy.action, idle_ms)]
    facts += recall(known, lease, "it ends", now_ms)
    detail = f"{lease.use.state.name.lower()} for {idle_ms // 60_000} minutes"
    if policy.action is IdleAction.SUSPEND:
        grace_ms = lease.request.grace_ms
        return facts + lifecycle.send_back(known, lease, EndReason.IDLE, now_ms, detail=detail, grace_ms=grace_ms)
    return facts + lifecycle.end(known, lease, EndReason.IDLE, now_ms, detail=detail)


def exempt(known: Known, command: c.ExemptLease, now_ms: int) -> Decision[None]:
    """Let idleness of a lease have no consequences for a while."""
    lease = known.lease(command.lease_id)
    if command.for_ms > EXEMPT_MS_MAX:
        raise InvalidField("for_s", f"{command.for_ms // 1000} s; at most {EXEMPT_MS_MAX // 1000} s (a day)")
    until_ms = now_ms + command.for_ms if command.for_ms else 0
    if lease.ended or (not until_ms and not lease.use.exempt_until_ms):
        return NOTHING
    return Decision((LeaseExempted(now_ms, lease.lease_id, until_ms, command.reason, command.by),))


def confirm_notice(known: Known, command: c.ConfirmNotice, now_ms: int) -> Decision[None]:
    """A notifier has delivered a warning."""
    lease = known.lease(command.lease_id)
    if lease.ended or not lease.use.told < command.number <= lease.use.warned:
        return NOTHING
    return Decision((WarningTold(now_ms, lease.lease_id, command.number, command.by),))


DECIDES = Decides(commands=by_kind(look, exempt, confirm_notice))
