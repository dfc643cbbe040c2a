"""The admin contract's answers: everything declared, invoices, what was set aside; and maintenance windows."""

from __future__ import annotations

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.books.ledger.invoice import Invoice
from aliquot.coordinator.core.books.maintenance import WindowSpec
from aliquot.coordinator.core.books.tenancy.specs import Pool
from aliquot.coordinator.core.values.troubles import Trouble
from aliquot.coordinator.reading.books import AccountView, TenancyView, WindowView
from aliquot.coordinator.wire.tenancy import POOL_OUT, QUEUE_OUT, RATES_OUT, TENANT_OUT, USE_OUT
from aliquot.v1 import admin_pb2

_TIME_CHARS_MAX = 32
_NODES_SHOWN = 1_000
_HOLD = Writer(admin_pb2.HoldView, Hold)
_USE = (lambda view, _: view, USE_OUT)
_POOL = Writer(admin_pb2.PoolView, Pool, {"spec": POOL_OUT})
_TENANT = Writer(admin_pb2.TenantView, AccountView, {"spec": (lambda view, _: view.spec, TENANT_OUT), "use": _USE})
_QUEUE = Writer(admin_pb2.QueueView, AccountView, {"spec": (lambda view, _: view.spec, QUEUE_OUT), "use": _USE})
tenancy_message = Writer(
    admin_pb2.Tenancy,
    TenancyView,
    {"pools": _POOL, "tenants": _TENANT, "queues": _QUEUE, "rates": RATES_OUT, "holds": _HOLD},
).message
"""Everything declared."""


invoice_message = Writer(
    admin_pb2.Invoice,
    Invoice,
    {"balance_micro": lambda _, balance_micro: None if balance_micro is None else str(balance_micro)},
).message
"""An invoice; what knows no bound as decimals."""

set_aside_message = Writer(
    admin_pb2.SetAside, Trouble, {"work": lambda trouble, _: str(trouble.work), "subject": "work.subject"}
).message
"""Work on which deciding failed too often."""


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


window_message = Writer(
    admin_pb2.MaintenanceView,
    WindowView,
    {
        "window": "window.spec",
        "node_ids": lambda view, _: view.node_ids[:_NODES_SHOWN],
        "nodes": lambda view, _: len(view.node_ids),
    },
    parts=("window",),
).message
"""A window as administrators see it."""
