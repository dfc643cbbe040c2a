"""The admin contract's answers: everything declared, invoices, what was set aside."""

from __future__ import annotations

from aliquot.common.fields import Writer
from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.books.ledger.invoice import Invoice
from aliquot.coordinator.core.books.tenancy.specs import Pool
from aliquot.coordinator.core.values.troubles import Trouble
from aliquot.coordinator.reading.books import AccountView, TenancyView
from aliquot.coordinator.wire.tenancy import POOL_OUT, QUEUE_OUT, RATES_OUT, TENANT_OUT, USE_OUT
from aliquot.v1 import admin_pb2

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
