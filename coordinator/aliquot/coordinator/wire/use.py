"""What leases make of what they hold, as messages; and what is said of idleness, read from them."""

from __future__ import annotations

from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.use import HOUR_MS, NO_USE, IdleAction, IdlePolicy
from aliquot.coordinator.core.known.use_windows import Efficiency
from aliquot.v1 import admin_pb2, types_pb2


def write_use(message: types_pb2.Lease, lease: Lease, efficiency: Efficiency | None = None) -> None:
    """What is known of the use of a lease; nothing where nothing is."""
    use = lease.use
    if use == NO_USE and efficiency is None:
        return
    slot = message.use
    slot.state = int(use.state)  # type: ignore[assignment]
    slot.since_ms = use.since_ms
    slot.warned, slot.told, slot.act_ms = use.warned, use.told, use.act_ms
    slot.action = use.action.value if use.warned else ""
    slot.lent, slot.lent_memory = use.lent, use.lent_memory
    slot.exempt_until_ms, slot.exempt_reason, slot.exempt_by = (
        use.exempt_until_ms, use.exempt_reason, use.exempt_by,
    )  # fmt: skip
    if efficiency is not None:
        slot.efficiency_permille = efficiency.median_permille
        slot.efficiency_p95_permille = efficiency.p95_permille
        slot.known_permille = efficiency.known_permille


def read_policy(message: admin_pb2.IdlePolicy, path: str) -> IdlePolicy:
    """What a queue says of idleness. Without warnings of its own they come after a half and 7/8 of the time."""
    action = message.action or IdleAction.NOTIFY.value
    if action not in [known.value for known in IdleAction]:
        hint = "notify, lend, suspend or release"
        raise InvalidFieldError(f"{path}.action", f"{action[:32]!r} is not an action", hint=hint)
    after_ms = message.after_s * 1000 or 2 * HOUR_MS
    warn_ms = tuple(warn_s * 1000 for warn_s in message.warn_s)
    if not warn_ms and not message.never_warn:
        warn_ms = (after_ms // 2, after_ms * 7 // 8)
    return IdlePolicy(IdleAction(action), after_ms, warn_ms)


def policy_message(policy: IdlePolicy | None) -> admin_pb2.IdlePolicy | None:
    """The same as a message."""
    if policy is None:
        return None
    return admin_pb2.IdlePolicy(
        action=policy.action.value,
        after_s=policy.after_ms // 1000,
        warn_s=[warn_ms // 1000 for warn_ms in policy.warn_ms],
        never_warn=not policy.warn_ms,
    )
