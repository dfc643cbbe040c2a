"""The settings that decisions depend on. Nothing that is replayed depends on them."""

from __future__ import annotations

import msgspec


class CoreConfig(msgspec.Struct, frozen=True):
    """Settings that decisions depend on. Facts carry what was decided, so a changed setting never changes a replay."""

    policy: str = "price"
    confirm_timeout_ms: int = 30_000
    """A GRANTED slice that its agent has not confirmed for so long is given up and its lease requeued."""
    requeue_backoff_ms: int = 1_000
    """Doubled with every such failure of the same lease in a row, up to `requeue_backoff_max_ms`."""
    requeue_backoff_max_ms: int = 60_000
    requeues_max: int = 16
    """A lease whose grants failed to come up so often, one after another, ends as FAILED."""
    queued_max: int = 200_000
    retain_ended_ms: int = 600_000
    retain_ended_max: int = 100_000
    """Ended leases, and with them their idempotency keys, are kept for so long, and never many more than so many."""
    ledger_entries_max: int = 20_000
    """About so much of the latest usage is kept entry by entry; older usage as sums for each hour."""
    strict_tenants: bool | None = False
    """Refuse tenants and queues that were not declared; otherwise they may ask, without a guarantee. None, as a
    coordinator's settings have it unless they are told otherwise: refuse them where any are declared.
    """
    reclaim_min_run_ms: int = 20_000
    """Borrowed capacity may be reclaimed after this long, whatever the request says..."""
    reclaim_grace_ms: int = 30_000
    """...and with at most this much grace: together under a minute."""
    preemptions_max: int = 3
    """A lease is preempted at most so often within `preemption_period_ms`; then it waits until it can stay."""
    preemption_period_ms: int = 3_600_000
    cut_patience_ms: int = 10_000
    """A request must have waited so long before cards in MIG mode are cut for it..."""
    cut_rest_ms: int = 60_000
    """...and a card rests so long after a cut; twice as long after each that failed, up to an hour."""
    cut_timeout_ms: int = 300_000
    """An order to cut a card that was not answered for so long has failed."""
    cut_look_ms: int = 1_000
    hold_slack_ms: int = 30_000
    """A preemptor's hold outlives its victims' deadline by this much."""
    reservation_ms: int = 86_400_000
    """How long devices are kept for the head of a line before they are offered to all again."""
    growth_idle_ms: int = 5_000
    """Elastic leases grow when capacity has been on offer for so long and nobody who waits could use it..."""
    growth_rest_ms: int = 30_000
    """...and each of them not before this time after its last change: at most two changes of shape a minute."""
    shrink_stop_ms: int = 5_000
    """Between SIGTERM and SIGKILL of what still runs when the notice of a slice that is given back is over."""
    repairs_at_once_permille: int = 100
    """Of the cards of one (pool, model), at most so many are repaired at once without a person; one always..."""
    repairs_an_hour_permille: int = 200
    """...and so many within an hour."""
    soft_out_permille: int = 200
    """Where more of them are out of service than this, soft evidence takes out no more."""
    repairs_max: int = 2
    """A card that was repaired so often of the same cause within seven days needs a person."""
    reset_timeout_ms: int = 300_000
    reboot_timeout_ms: int = 1_800_000
    verify_timeout_ms: int = 120_000
    """An agent that has not answered an order for so long has failed to carry it out."""
    flap_rest_ms: int = 600_000
    """A card that had the same trouble within a day must be well for so long; twice as long after each more..."""
    flap_rest_max_ms: int = 21_600_000
    """...up to this."""
    probation_ms: int = 86_400_000
    idle_window_ms: int = 600_000
    """A lease is idle once nothing was done with it for so long."""
    lent_grace_ms: int = 1_000
    """Between SIGTERM and SIGKILL of what uses another lease's share when that one wants it back."""
    supply_look_ms: int = 10_000
    """How often it is looked at which nodes should come, or go."""
    health_look_ms: int = 5_000
    """How often incidents that wait for something are looked at."""
