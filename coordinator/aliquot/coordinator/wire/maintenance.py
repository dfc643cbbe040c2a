"""Maintenance windows' messages, from and to what the core declares."""

from __future__ import annotations

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.coordinator.core.books.maintenance import WindowSpec
from aliquot.coordinator.reading.books import WindowView
from aliquot.v1 import admin_pb2

_TIME_CHARS_MAX = 32
_NODES_SHOWN = 1_000


def read_window(message: admin_pb2.MaintenanceWindow) -> WindowSpec:
    """A window to be declared. Raises InvalidFieldError for what nobody could mean; times are the core's to read."""
    if not message.name:
        raise InvalidFieldError("name", "is empty", hint="name the window: rack-7-switches")
    if message.grace_s > limits.MAX_GRACE_S:
        raise InvalidFieldError("grace_s", f"{message.grace_s} s; at most {limits.MAX_GRACE_S}")
    labels = names.validate_labels(message.labels)
    return WindowSpec(
        name=names.validate_node(message.name, "name"),
        start=names.validate_text(message.start, "start", _TIME_CHARS_MAX),
        end=names.validate_text(message.end, "end", _TIME_CHARS_MAX),
        zone=names.validate_text(message.zone, "zone", limits.MAX_NAME_CHARS) or "UTC",
        weekly=message.weekly,
        lead_ms=message.lead_s * 1000,
        grace_ms=message.grace_s * 1000,
        node_ids=tuple(message.node_ids),
        labels=tuple(sorted(labels.items())),
        pool=message.pool and names.validate_pool(message.pool),
        reason=names.validate_text(message.reason, "reason", limits.MAX_REASON_CHARS),
    )


_VIEW = Writer(
    admin_pb2.MaintenanceView,
    WindowView,
    {
        "window": "window.spec",
        "node_ids": lambda view, _: view.node_ids[:_NODES_SHOWN],
        "nodes": lambda view, _: len(view.node_ids),
    },
    parts=("window",),
)
view_message = _VIEW.message
"""A window as administrators see it."""
