"""What leases make of what they hold, as messages; and what is said of idleness, read from them."""

from __future__ import annotations

from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.coordinator.core.books.use import HOUR_MS, IdleAction, IdlePolicy, LeaseUse
from aliquot.coordinator.core.known.use_windows import Efficiency
from aliquot.v1 import admin_pb2, types_pb2

_EFFICIENCY = ("efficiency_permille", "efficiency_p95_permille", "known_permille")

USE = Writer(
    types_pb2.LeaseUse,
    LeaseUse,
    {"action": lambda use, _: use.action.value if use.warned else ""},
    left_out=dict.fromkeys(_EFFICIENCY, "see `add_efficiency`"),
)


def add_efficiency(message: types_pb2.LeaseUse, efficiency: Efficiency | None) -> None:
    """What a lease makes of its share, where that is known."""
    if efficiency is not None:
        message.efficiency_permille = efficiency.median_permille
        message.efficiency_p95_permille = efficiency.p95_permille
        message.known_permille = efficiency.known_permille


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
