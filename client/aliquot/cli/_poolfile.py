"""Files that describe a pool's tenants: YAML, JSON or TOML, for `aliquot apply`.

::

    pools:
      - name: default
        devices: [{model: A100-80, count: 64, memory: 79Gi}]   # declared: guarantees may count on them already
        limit: {gpus: 60}                                       # what is above it stays free
    queues:
      - name: root                                              # the order among top-level queues
        policy: fair_share                                      # fifo, priority, fair_share, capacity, slowdown
      - {name: training, policy: fair_share, guaranteed: {gpus: 16}, limit: {gpus: 48}, weight: 2}
      - name: vision
        parent: training
        ageing: 1m
        reserve_after: 5m
        placement: binpack                                      # or price, spread, workload; of pools too
        idle: {action: lend, after: 2h, warn: [1h, 105m]}       # or notify, suspend, release
        scaling: [{keep: start, when: weekdays 08:00-18:00}]   # for elastic leases
    tenants:
      - name: research
        queue: training
        guaranteed: {gpus: 8, memory: 640Gi}
        limit: {gpus: 24}
        models: {A100-80: {limit: {gpus: 8}}}
        windows:                            # the first that is open is in force; of queues too
          - {when: "weekdays 08:00-18:00 Europe/Zurich", limit: {gpus: 12}}
          - {when: weekends, guaranteed: {gpus: 16}, limit: {gpus: 48}}
        budget: {period: month, gpu_hours: 5000, money: 8000}
        disruptions: {max: 3, per: 1h}
        priority_max: 100                   # of this tenant and all below it
        waiting_max: 5000
        on_over_limit: {action: stronger_tier, for: 1h, after: 1, min_tier: driver}   # or refuse, or none
    prices:
      currency: EUR
      gpu_hour: {A100-80: 2.10, "*": 1.00}
      gib_hour: {"*": 0.01}
      minimum: 1m
      discounts: [{above_gpu_hours: 1000, percent: 10}]

What the file does not name stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from aliquot.cli._document import (
    Found,
    Shape,
    duration_ms,
    each,
    flag,
    milli,
    money,
    number,
    percent,
    read_file,
    scaled,
    seconds,
    size,
    table,
    text,
    whole,
)
from aliquot.client import admin
from aliquot.common.limits import MAX_PRIORITY, MIN_PRIORITY

_GPU_HOUR_MILLI_MS = 1000 * 3_600_000


def read_pool_file(path: Path) -> admin.Declarations:
    """The file's declarations. Raises `ConfigError` with the place in the file."""
    return read_file(path, _FILE)


def _models(value: Found, where: str) -> tuple[admin.ModelQuota, ...]:
    return tuple(
        Shape(partial(admin.ModelQuota, str(model)), _BOTH_AMOUNTS)(quota, f"{where}.{model}")
        for model, quota in table(value, where).items()
    )


def _warnings(value: Found, where: str) -> dict[str, object]:
    found = each(seconds)(value, where)
    return {"warn_s": found, "never_warn": not found}


def _rates(gpu_hour: Mapping[str, int], gib_hour: Mapping[str, int]) -> tuple[admin.ModelRate, ...]:
    """Those of each model that either names; what one leaves out is as it says of all others."""
    models = dict.fromkeys([*gpu_hour, *gib_hour])
    return tuple(
        admin.ModelRate(model, gpu_hour.get(model, gpu_hour.get("*", 0)), gib_hour.get(model, gib_hour.get("*", 0)))
        for model in models
    )


def _by_model(value: Found, where: str) -> dict[str, int]:
    return {str(model): money(price, f"{where}.{model}") for model, price in table(value, where).items()}


def _rate_card(gpu_hour: Mapping[str, int], gib_hour: Mapping[str, int], **rest: object) -> admin.RateCard:
    return admin.RateCard(rates=_rates(gpu_hour, gib_hour), **rest)  # type: ignore[arg-type]


_AMOUNT = Shape(admin.Amount, {"gpus": ("share_milli", milli), "memory": ("memory_bytes", size)})
_BOTH_AMOUNTS = {"guaranteed": _AMOUNT, "limit": _AMOUNT}
_WINDOW = Shape(admin.QuotaWindow, {"when": text, **_BOTH_AMOUNTS, "models": _models}, needed=["when"])
_QUOTA = Shape(admin.Quota, {**_BOTH_AMOUNTS, "weight": whole, "models": _models, "windows": each(_WINDOW)})
_DEVICES = Shape(
    admin.DeclaredDevices,
    {"model": text, "count": ("devices", whole), "memory": ("memory_bytes", size)},
    needed=["model"],
    default={"devices": 1},
)
_POOL = Shape(
    admin.PoolSpec,
    {"name": text, "devices": ("declared", each(_DEVICES)), "limit": _AMOUNT, "placement": text},
    needed=["name"],
)
_RULE = Shape(
    admin.ScaleRule,
    {
        "keep": text,
        "when": text,
        "waiting": ("waiting_at_least", whole),
        "busy_below": ("busy_below_permille", percent),
    },
)
_ON_OVER_LIMIT = Shape(
    admin.OnOverLimit,
    {"action": text, "for": ("for_s", seconds), "after": whole, "min_tier": text},
    needed=["action"],
)
_IDLE = Shape(
    admin.IdlePolicy, {"action": text, "after": ("after_s", seconds), "warn": ("", _warnings)}, needed=["action"]
)
_QUEUE = Shape(
    admin.QueueSpec,
    {
        "name": text,
        "parent": text,
        "policy": text,
        "pool": text,
        "tenants": each(text),
        "ageing": ("ageing_s", seconds),
        "preempts": ("never_preempts", lambda value, where: not flag(value, where)),
        "reserve_after": ("reserve_after_s", seconds),
        "half_life": ("half_life_s", seconds),
        "scaling": each(_RULE),
        "on_over_limit": _ON_OVER_LIMIT,
        "idle": _IDLE,
        "extend_to": ("extend_to_s", seconds),
        "large_first": ("large_first_permille", milli),
        "placement": text,
    },
    needed=["name"],
    within={"quota": _QUOTA},
)
_BUDGET = Shape(
    admin.Budget,
    {"period": text, "gpu_hours": ("share_milli_ms", scaled(_GPU_HOUR_MILLI_MS)), "money": ("money_micro", money)},
    default={"period": "month"},
)
_TENANT = Shape(
    admin.TenantSpec,
    {
        "name": text,
        "queue": ("default_queue", text),
        "budget": _BUDGET,
        "disruptions": (
            "",
            Shape(dict, {"max": ("disruptions_max", whole), "per": ("disruption_period_s", seconds)}),
        ),
        "description": text,
        "on_over_limit": _ON_OVER_LIMIT,
        "priority_max": number(MIN_PRIORITY, MAX_PRIORITY, "a priority"),
        "waiting_max": whole,
    },
    needed=["name"],
    within={"quota": _QUOTA},
)
_DISCOUNT = Shape(
    admin.DiscountTier,
    {"above_gpu_hours": ("above_gpu_milli_hours", scaled(1000)), "percent": ("discount_permille", percent)},
    default={"above_gpu_milli_hours": 0, "discount_permille": 0},
)
_PRICES = Shape(
    _rate_card,
    {
        "currency": text,
        "gpu_hour": _by_model,
        "gib_hour": _by_model,
        "minimum": ("minimum_ms", duration_ms),
        "discounts": ("tiers", each(_DISCOUNT)),
    },
    default={"currency": "credits", "minimum_ms": 60_000, "gpu_hour": {}, "gib_hour": {}},  # `USUAL_PRICES`
)
_ONE = admin.Quota(weight=1)
_OVER_LIMIT = admin.OnOverLimit("", for_s=3600, after=1, min_tier="driver")
USUAL_POOL = admin.PoolSpec("")
USUAL_QUEUE = admin.QueueSpec(
    "",
    parent="root",
    policy="priority",
    quota=_ONE,
    ageing_s=60,
    reserve_after_s=300,
    half_life_s=86_400,
    on_over_limit=_OVER_LIMIT,
    idle=admin.IdlePolicy("", after_s=7200, warn_s=(3600, 6300)),
    large_first_permille=500,
)
USUAL_TENANT = admin.TenantSpec(
    "", quota=_ONE, budget=admin.Budget(period="month"), disruption_period_s=3600, on_over_limit=_OVER_LIMIT
)
USUAL_PRICES = admin.RateCard(currency="credits", minimum_ms=60_000)
"""What the coordinator makes of that of which nothing is said."""
_FILE = Shape(
    admin.Declarations,
    {"pools": each(_POOL), "queues": each(_QUEUE), "tenants": each(_TENANT), "prices": ("rates", _PRICES)},
)
