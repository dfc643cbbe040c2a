"""Files that put nodes on offer: YAML, JSON or TOML, for `aliquot supply apply`.

::

    shapes:
      - name: h100              # nodes are named h100-1, h100-2, ...
        model: H100-80
        devices: 8
        max: 10                 # at a time, with those on their way
        min: 0                  # kept, however empty
        lead: 10m               # from an order to a node that takes leases
        price: 24.50            # of one node for an hour
        pool: default           # labels, memory (of a device), cpu, host_memory and linked (NVLink) too
      - {name: metal, model: A100-80, devices: 4, max: 2, lead: 4m, machines: [rack-a, rack-b]}   # woken, put to sleep
    policy:
      act: false                # a dry run: advice, and no orders
      target: 5m                # how long a request may wait that nothing else serves
      means: [wait, reclaim, shrink, move]
      idle: 10m                 # empty for so long, ...
      keep: 30m                 # ... here for so long, ...
      rest: 24h                 # ... and not given back within this time already: it is given back
      headroom: 10              # per cent that stay free when nodes are given back
      spare: 10                 # per cent that are kept free by ordering ahead; at most the headroom
      ready: 93                 # per cent of the times in which what is asked for next, before a node could come, fits
      late: 15m
      orders: 32
      budget: {hour: 200, month: 50000}
    pools:
      - {name: default, max: 20, headroom: 15}
"""

from __future__ import annotations

from pathlib import Path

from aliquot.cli._document import (
    Found,
    Shape,
    each,
    flag,
    milli,
    money,
    percent,
    read_file,
    seconds,
    size,
    text,
    texts,
    whole,
)
from aliquot.client.supply import NodeShape, PoolBound, SupplyPolicy, SupplySpec


def read_supply_file(path: Path) -> SupplySpec:
    """What a file puts on offer. Raises `ConfigError`."""
    return read_file(path, _FILE)


def _means(value: Found, where: str) -> dict[str, object]:
    found = each(text)(value, where)
    return {"means": found, "no_means": not found}


_SHAPE = Shape(
    NodeShape,
    {
        "name": text,
        "model": text,
        "devices": whole,
        "max": ("nodes_max", whole),
        "min": ("nodes_min", whole),
        "lead": ("lead_s", seconds),
        "price": ("price_micro", money),
        "pool": text,
        "labels": texts,
        "memory": ("memory_bytes", size),
        "cpu": ("cpu_milli", milli),
        "host_memory": ("host_memory_bytes", size),
        "machines": each(text),
        "linked": flag,
    },
    needed=["name", "model"],
    default={"devices": 1, "nodes_max": 1},
)
_POLICY = Shape(
    SupplyPolicy,
    {
        "act": flag,
        "target": ("target_wait_s", seconds),
        "means": ("", _means),
        "believe": ("means_s", seconds),
        "idle": ("idle_s", seconds),
        "keep": ("keep_s", seconds),
        "rest": ("rest_s", seconds),
        "headroom": ("headroom_permille", percent),
        "spare": ("spare_permille", percent),
        "ready": ("ready_permille", percent),
        "late": ("late_s", seconds),
        "orders": ("orders_max", whole),
        "budget": ("", Shape(dict, {"hour": ("hour_micro", money), "month": ("month_micro", money)})),
    },
)
_POOL = Shape(
    PoolBound,
    {"name": ("pool", text), "max": ("nodes_max", whole), "headroom": ("headroom_permille", percent)},
    needed=["name"],
)
_FILE = Shape(
    SupplySpec,
    {"shapes": each(_SHAPE), "policy": _POLICY, "pools": each(_POOL)},
)
