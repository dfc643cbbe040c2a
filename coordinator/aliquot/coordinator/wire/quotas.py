"""Quotas with their windows, from and to the contract."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.common import catalog
from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.core.books.tenancy.specs import (
    UNLIMITED,
    Amount,
    ModelQuota,
    QueueSpec,
    Quota,
    QuotaWindow,
    TenantSpec,
)
from aliquot.coordinator.core.books.tenancy.timetable import read_timetable
from aliquot.coordinator.reading.books import AccountView
from aliquot.v1 import admin_pb2


def read_amount(message: admin_pb2.Amount, absent: int) -> Amount:
    """An amount; what it does not say is `absent`."""
    return Amount(
        message.share_milli if message.HasField("share_milli") else absent,
        message.memory_bytes if message.HasField("memory_bytes") else absent,
    )


def read_quota(message: admin_pb2.Quota, path: str) -> Quota:
    """A quota as declared. Raises InvalidFieldError for a window whose time can't be read."""
    return Quota(
        guaranteed=read_amount(message.guaranteed, 0),
        limit=read_amount(message.limit, UNLIMITED),
        weight=message.weight or 1,
        models=_models(message.models),
        windows=tuple(_window(window, f"{path}.windows[{number}]") for number, window in enumerate(message.windows)),
    )


def _window(message: admin_pb2.QuotaWindow, path: str) -> QuotaWindow:
    try:
        when = read_timetable(message.when).text
    except ValueError as error:
        raise InvalidFieldError(f"{path}.when", str(error)) from error
    return QuotaWindow(
        when,
        read_amount(message.guaranteed, 0) if message.HasField("guaranteed") else None,
        read_amount(message.limit, UNLIMITED) if message.HasField("limit") else None,
        _models(message.models) or None,
    )


def _models(messages: Iterable[admin_pb2.ModelQuota]) -> tuple[ModelQuota, ...]:
    models = [
        ModelQuota(
            catalog.parse_kind(model.model), read_amount(model.guaranteed, 0), read_amount(model.limit, UNLIMITED)
        )
        for model in messages
    ]
    return tuple(sorted(models, key=lambda model: model.model))


def amount_message(amount: Amount, absent: int) -> admin_pb2.Amount:
    """An amount, without what is `absent`."""
    return admin_pb2.Amount(
        share_milli=amount.share_milli if amount.share_milli != absent else None,
        memory_bytes=amount.memory_bytes if amount.memory_bytes != absent else None,
    )


def quota_message(quota: Quota) -> admin_pb2.Quota:
    """A quota."""
    return admin_pb2.Quota(
        guaranteed=amount_message(quota.guaranteed, 0),
        limit=amount_message(quota.limit, UNLIMITED),
        weight=quota.weight,
        models=_model_messages(quota.models),
        windows=[
            admin_pb2.QuotaWindow(
                when=window.when,
                guaranteed=amount_message(window.guaranteed, 0) if window.guaranteed is not None else None,
                limit=amount_message(window.limit, UNLIMITED) if window.limit is not None else None,
                models=_model_messages(window.models or ()),
            )
            for window in quota.windows
        ],
    )


def _model_messages(models: Iterable[ModelQuota]) -> list[admin_pb2.ModelQuota]:
    return [
        admin_pb2.ModelQuota(
            model=model.model,
            guaranteed=amount_message(model.guaranteed, 0),
            limit=amount_message(model.limit, UNLIMITED),
        )
        for model in models
    ]


def use_message(view: AccountView[TenantSpec] | AccountView[QueueSpec]) -> admin_pb2.AccountUse:
    """What a tenant or queue holds, and what its windows make of its quota now."""
    found = admin_pb2.AccountUse(
        share_milli=view.share_milli,
        memory_bytes=view.memory_bytes,
        waiting=view.waiting,
        fair_share_billionths=view.fair_share_billionths,
        guaranteed_now=amount_message(view.guaranteed_scaled, 0),
    )
    ruling = view.in_force
    if ruling is not None:
        windows = view.spec.quota.windows
        now = admin_pb2.WindowsNow(
            in_force=quota_message(view.spec.quota.under(ruling.window)),
            window=windows[ruling.window].when if 0 <= ruling.window < len(windows) else "",
            until_ms=ruling.until_ms,
            unknown=ruling.unknown,
        )
        if ruling.until_ms and not ruling.unknown:
            now.next.CopyFrom(quota_message(view.spec.quota.under(ruling.following)))
        found.windows.CopyFrom(now)
    return found
