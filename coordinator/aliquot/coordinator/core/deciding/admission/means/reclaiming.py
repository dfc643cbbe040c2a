"""Room below a limit: borrowers end for a request that a guarantee covers and that a limit they fill keeps out.

A queue may have a limit below the sum of what its tenants could use. Whoever borrows there can fill it, and then stands
in the way of an owner for whom there would be devices. Enough of them end for the request to fit below every limit it
counts against: the largest first, so that they are few. No devices are kept, because any that suit will do: the request
is tried first when the borrowers have gone. Several entitled requests below one limit are served at once: equal ones
together, others one after another in the same pass.

Only leases that hold something below the limit are looked at, the youngest first, until enough are found. A turn looks
at a bounded number; the next turn goes on.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import NamedTuple

from aliquot.coordinator.core.books.holds import PreemptionStarted
from aliquot.coordinator.core.books.leases.records import Lease, parts_of
from aliquot.coordinator.core.books.tenancy.accounts import Account
from aliquot.coordinator.core.books.tenancy.limits import covered, held_of_kind, parts_of_kind
from aliquot.coordinator.core.books.tenancy.ranking import Part
from aliquot.coordinator.core.books.tenancy.specs import Amount
from aliquot.coordinator.core.commands.outcomes import SEARCH_ATTEMPTS, Attempt
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding.admission.means.waiting import Waiting
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing import AdmissionPass
from aliquot.coordinator.core.rules.granting import chain_of, guarantee_scale, is_entitled, least_held, suspended
from aliquot.coordinator.core.rules.preemption.victims import NEVER_MS, Eligibility
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.rests import SEARCH_REST_MS
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import Demand, EndReason

EQUALS_MAX = 64
"""Equal requests for which room is made together."""
LOOKED_AT_MAX = 512
"""Leases that one turn looks at below one limit: two milliseconds or so."""


class _Unfinished(Exception):
    """Ends a turn's part of a search."""


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """Looks at `LOOKED_AT_MAX` leases in a turn, and goes on in the next."""
    return reclaim(known, waiting.admission, waiting.lease, waiting.demand, waiting.now_ms)


def reclaim(known: Known, admission: AdmissionPass, lease: Lease, demand: Demand, now_ms: int) -> Attempt:
    """Tell borrowers below the same limits to end; no facts where that would not be enough, or where the search goes on
    in the next turn.
    """
    if not is_entitled(known, lease) or suspended(known, lease.request, now_ms) is not None:
        return Attempt([])
    key = (demand, lease.request.tenant, lease.request.queue, lease.request.priority, None)
    version = known.freed_version + known.tenancy.guaranteed_version
    searches = known.memory.victim_searches
    rest = searches.of(key, now_ms)
    if rest is not None and rest.version == version:
        return Attempt([])
    eligible = Eligibility(
        known,
        priority=-NEVER_MS,
        preemptor=lease.lease_id,
        reclaim=True,
        scale=guarantee_scale(known),
        now_ms=now_ms,
    )
    try:
        chosen, again_ms = _clear(known, admission, lease, _entitled_parts(known, lease, demand), eligible)
        if chosen is None:
            # Not all that are entitled at once: the first of them, then.
            chosen, next_ms = _clear(known, admission, lease, least_held(known, demand), eligible)
            again_ms = min(again_ms, next_ms)
    except _Unfinished:
        return Attempt([], again=True, cost=SEARCH_ATTEMPTS)
    admission.looked_at.clear()
    if not chosen:
        # Whoever borrows from now on can be reclaimed after its minimum: this search did not see it.
        again_ms = min(again_ms, now_ms + max(SEARCH_REST_MS, known.config.reclaim_min_run_ms))
        searches.begin(key, version, now_ms, min(now_ms + SEARCH_REST_MS, again_ms))
        known.memory.timers.add(again_ms, Due.RETRY, lease.lease_id)
        return Attempt([], cost=SEARCH_ATTEMPTS)
    return Attempt(_end(known, lease, chosen, now_ms), cost=SEARCH_ATTEMPTS)


def _clear(
    known: Known, admission: AdmissionPass, lease: Lease, parts: list[Part], eligible: Eligibility
) -> tuple[dict[str, None] | None, int]:
    """(leases that must end for these parts to fit below every limit, or None: not enough may; when others may end)."""
    ceilings = [ceiling for ceiling in _limits(known, lease) if _asked(parts, ceiling)]
    chosen: dict[str, None] = {}
    again_ms = NEVER_MS
    for ceiling in ceilings:
        found, next_ms = _enough(known, admission, ceiling, parts, eligible, chosen)
        again_ms = min(again_ms, next_ms)
        if found is None:
            return None, again_ms
        chosen |= found
    for ceiling in ceilings:
        promised = admission.promised.setdefault(ceiling.key, [0, 0])
        promised[0] += sum(part[1] for part in _asked(parts, ceiling))
        promised[1] += sum(part[2] for part in _asked(parts, ceiling))
    return chosen, again_ms


class _Ceiling(NamedTuple):
    """One limit: whose, of which kind of devices (or, empty, of all), and how much."""

    account: Account
    model: str
    limit: Amount

    @property
    def key(self) -> tuple[str, str, str]:
        return self.account.kind, self.account.name, self.model


def _limits(known: Known, lease: Lease) -> list[_Ceiling]:
    found = []
    for account in chain_of(known, lease.request).limited:
        found.append(_Ceiling(account, "", account.quota.limit))
        found += (_Ceiling(account, of_model.model, of_model.limit) for of_model in account.quota.models)
    return found


def _asked(parts: list[Part], ceiling: _Ceiling) -> list[Part]:
    return parts_of_kind(parts, ceiling.model)


def _entitled_parts(known: Known, lease: Lease, demand: Demand) -> list[Part]:
    """The parts of this request and of its equals behind it, as far as the guarantee covers them together."""
    parts = least_held(known, demand)
    place = known.lines.place_of(lease.lease_id)
    if place is None or place.resting:
        return parts
    scale = guarantee_scale(known)
    guaranteed = chain_of(known, lease.request).guaranteed
    number = min(len(known.lines.queues[place.queue][place.tenant].lines[place.line]), EQUALS_MAX)
    while number > 1 and not any(covered(account.quota, (account,), parts * number, scale) for account in guaranteed):
        number -= 1
    return parts * number


def _enough(
    known: Known,
    admission: AdmissionPass,
    ceiling: _Ceiling,
    parts: list[Part],
    eligible: Eligibility,
    chosen: dict[str, None],
) -> tuple[dict[str, None] | None, int]:
    """(leases that must end beside the chosen ones for these parts to fit; when others may end).

    Raises _Unfinished where the search needs another turn.
    """
    account, model, limit = ceiling
    held = held_of_kind(account, model)
    asked, promised = _asked(parts, ceiling), admission.promised.get(ceiling.key, (0, 0))
    share = memory = 0
    if limit.share_milli >= 0:
        share = held[0] + promised[0] + sum(part[1] for part in asked) - limit.share_milli
    if limit.memory_bytes >= 0:
        memory = held[1] + promised[1] + sum(part[2] for part in asked) - limit.memory_bytes
    if share <= 0 and memory <= 0:
        return {}, NEVER_MS
    key = (*ceiling.key, share, memory)
    position, old, again_ms = admission.looked_at.get(key, (0, {}, NEVER_MS))
    fresh = islice(account.youngest(), position, position + LOOKED_AT_MAX)
    going = (i for i in (*chosen, *known.ending, *old) if i in account.holders)  # however long they have held it
    candidates: list[tuple[int, int, int, str]] = []
    spare_share = spare_memory = 0
    for lease_id in dict.fromkeys((*going, *fresh)):
        other = known.leases[lease_id]
        counted = parts_of_kind(parts_of(other.holding), model)
        of_share, of_memory = sum(part[1] for part in counted), sum(part[2] for part in counted)
        last_ms = max((piece.deadline_ms for piece in other.holding), default=0)
        if lease_id in chosen or (other.ending and last_ms <= eligible.soon_ms):
            share, memory = share - of_share, memory - of_memory
            continue
        endable_ms = eligible.endable_ms(lease_id)
        if endable_ms <= eligible.now_ms:
            candidates.append((of_share, of_memory, eligible.lost_now(lease_id), lease_id))
            spare_share, spare_memory = spare_share + of_share, spare_memory + of_memory
        else:
            again_ms = min(again_ms, endable_ms)
    if spare_share >= share and spare_memory >= memory:
        return _largest(candidates, share, memory), again_ms
    position += LOOKED_AT_MAX
    if position >= len(account.holders):
        return None, again_ms
    admission.looked_at[key] = (position, {candidate[3]: None for candidate in candidates}, again_ms)
    raise _Unfinished


def _largest(candidates: list[tuple[int, int, int, str]], share: int, memory: int) -> dict[str, None]:
    """Few of (share, memory, lost work, lease) that free so much: a greedy choice, the largest first."""
    candidates.sort(key=lambda c: c[3], reverse=True)

    def worth(number: int) -> tuple[int, int, int, int]:
        of_share, of_memory, lost, _ = candidates[number]
        return -min(of_share, max(share, 0)), -min(of_memory, max(memory, 0)), lost, number

    heap = [worth(number) for number in range(len(candidates))]
    heapq.heapify(heap)
    found: dict[str, None] = {}
    while share > 0 or memory > 0:
        now = worth(heap[0][3])
        if now != heap[0]:  # what is left to be freed is less than when it was last compared
            heapq.heapreplace(heap, now)
            continue
        of_share, of_memory, _, lease_id = candidates[heapq.heappop(heap)[3]]
        found[lease_id] = None
        share, memory = share - of_share, memory - of_memory
    return found


def _end(known: Known, lease: Lease, chosen: dict[str, None], now_ms: int) -> list[Fact]:
    grace_ms = known.config.reclaim_grace_ms
    leases = [known.leases[lease_id] for lease_id in chosen]
    victims = [other for other in leases if not other.end_reason]
    facts: list[Fact] = []
    if victims:
        facts.append(
            PreemptionStarted(
                at_ms=now_ms,
                preemptor=lease.lease_id,
                victims=tuple(other.lease_id for other in victims),
                deadline_ms=now_ms + max(min(other.request.grace_ms, grace_ms) for other in victims),
                reclaim=True,
            )
        )
    detail = f"for lease {lease.lease_id} (a guarantee is reclaimed below a limit)"
    for other in leases:
        if other.end_reason:
            facts.append(lifecycle.shorten_notice(other, now_ms, grace_ms))
            continue
        notice_ms = min(other.request.grace_ms, grace_ms)
        facts += lifecycle.send_back(known, other, EndReason.PREEMPTED, now_ms, detail=detail, grace_ms=notice_ms)
    return facts
