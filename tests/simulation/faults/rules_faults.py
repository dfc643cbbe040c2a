"""What administrators decide for a while: maintenance windows, budgets, rules of the queue in which all wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from aliquot.v1 import admin_pb2
from tests.simulation.faults.people_faults import ADMIN, GIB, administer, declare_below, run_for
from tests.simulation.sim.nodes import MODELS
from tests.simulation.sim.people import TENANTS

if TYPE_CHECKING:
    from tests.simulation.faults.kinds import Fault
    from tests.simulation.sim.world import World

Undo = Callable[[], None]


def _for_a_while(world: World, method: str, begin: Any, end_method: str, end: Any) -> Undo:
    """One call now and another one later, which waits until the first has come to its end."""
    begun = asyncio.Event()

    async def first() -> None:
        await administer(world, method, begin, 20, service=ADMIN)
        begun.set()

    async def second() -> None:
        await begun.wait()
        await administer(world, end_method, end, 20, service=ADMIN)

    run_for(world, first(), f"admin: {method}")
    return lambda: run_for(world, second(), f"admin: {end_method}")


def _maintenance(world: World, fault: Fault, random: Random) -> Undo | None:
    """Some nodes are to be left alone for a while. A window is withdrawn, or ends by itself until the next week."""
    now_s = world.auditor.books.at_ms // 1000
    start_s = now_s + random.randint(-10, 40)
    window = admin_pb2.MaintenanceWindow(
        name=f"window-{fault.seed}",
        start=wall(start_s),
        end=wall(max(start_s, now_s) + random.randint(5, 60)),
        weekly=random.random() < 0.25,
        lead_s=random.choice((0, 10, 30, 90)),
        grace_s=random.choice((0, 1, 4)),
    )
    which = random.random()
    if which < 0.7:
        nodes = random.sample(world.nodes, min(len(world.nodes), random.choice((1, 1, 2, 6))))
        window.node_ids.extend(node.node_id for node in nodes)
    elif which < 0.95:
        window.labels["zone"] = random.choice("abc")
    else:
        window.pool = "default"
    withdraw = admin_pb2.EndMaintenanceRequest(name=window.name)
    undo = _for_a_while(
        world, "DeclareMaintenance", admin_pb2.DeclareMaintenanceRequest(window=window), "EndMaintenance", withdraw
    )
    return undo if random.random() < 0.5 else None


def wall(at_s: int) -> str:
    """A moment as administrators write it, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _budget(world: World, fault: Fault, random: Random) -> Undo:
    """A tenant may use up so much and no more, until the next hour or for good; later it has no budget any more."""
    name = random.choice(TENANTS)
    budget = admin_pb2.Budget(period=random.choice(("hour", "hour", "day", "week", "month")))
    if random.random() < 0.7:
        budget.share_milli_ms = 10 ** random.randint(4, 7) * random.randint(1, 9)
    if random.random() < 0.5 or not budget.share_milli_ms:
        budget.money_micro = 10 ** random.randint(2, 6)
    begin, end = admin_pb2.ApplyRequest(), admin_pb2.ApplyRequest()
    begin.tenants.add(spec=admin_pb2.TenantSpec(name=name, budget=budget))
    declare_below(name, begin)
    end.tenants.add(spec=admin_pb2.TenantSpec(name=name))
    return _for_a_while(world, "Apply", begin, "Apply", end)


def _queue(world: World, fault: Fault, random: Random) -> Undo:
    """The queue in which all wait has another order, a limit, less patience, rules that hold elastic leases back."""
    spec = admin_pb2.QueueSpec(
        name="default",
        policy=random.choice(("fifo", "priority", "fair_share", "capacity", "slowdown")),
        never_preempts=random.random() < 0.3,
        ageing_s=random.choice((0, 1, 60)),
        reserve_after_s=random.choice((0, 2, 10, 300)),
    )
    if random.random() < 0.6:
        spec.quota.limit.share_milli = random.choice((0, 1_000, 5_000, 20_000, 200_000))
    if random.random() < 0.5:
        keep = random.choice(("start", "least"))
        spec.scaling.add(
            keep=keep, waiting_at_least=random.choice((0, 1, 5)), busy_below_permille=random.choice((0, 500))
        )
        if not (spec.scaling[0].waiting_at_least or spec.scaling[0].busy_below_permille):
            spec.scaling[0].when = soon(world.auditor.books.at_ms // 1000, random)
    begin, end = admin_pb2.ApplyRequest(), admin_pb2.ApplyRequest()
    begin.queues.add(spec=spec)
    end.queues.add(spec=admin_pb2.QueueSpec(name="default"))
    return _for_a_while(world, "Apply", begin, "Apply", end)


def _windows(world: World, fault: Fault, random: Random) -> Undo:
    """A tenant, or the queue in which all wait, may hold another amount for minutes that begin soon, on the wall of
    some zone; of several windows the first that is open counts. Later its quota is the same at all times.
    """
    quota = admin_pb2.Quota()
    if random.random() < 0.5:
        quota.limit.share_milli = random.choice((500, 2_000, 20_000))
    for _ in range(random.choice((1, 1, 2, 3))):
        window = quota.windows.add(when=soon(world.auditor.books.at_ms // 1000, random))
        window.limit.share_milli = random.choice((0, 500, 2_000, 20_000))
        if random.random() < 0.5:
            window.limit.memory_bytes = random.choice((0, 40, 400)) * GIB
        if random.random() < 0.3:
            limit = admin_pb2.Amount(share_milli=random.choice((0, 500, 1_000)))
            window.models.add(model=random.choice(MODELS)[1], limit=limit)
    begin, end = admin_pb2.ApplyRequest(), admin_pb2.ApplyRequest()
    if random.random() < 0.3:
        begin.queues.add(spec=admin_pb2.QueueSpec(name="default", quota=quota))
        end.queues.add(spec=admin_pb2.QueueSpec(name="default"))
    else:
        name = random.choice(TENANTS)
        for window in quota.windows:
            window.guaranteed.share_milli = min(window.limit.share_milli, random.choice((0, 1_000, 4_000)))
        begin.tenants.add(spec=admin_pb2.TenantSpec(name=name, quota=quota))
        declare_below(name, begin)
        end.tenants.add(spec=admin_pb2.TenantSpec(name=name))
    return _for_a_while(world, "Apply", begin, "Apply", end)


def soon(now_s: int, random: Random) -> str:
    """A window of minutes that is open already, or will be soon: `tue 00:01-00:03 Europe/Zurich`."""
    zone = random.choice(("UTC", "UTC", "Europe/Zurich", "America/New_York", "Asia/Kolkata"))
    start = datetime.fromtimestamp(now_s + random.randint(-90, 60), ZoneInfo(zone))
    end = start + timedelta(minutes=random.choice((1, 2, 2, 24 * 60 - 1)))
    days = random.choice(("daily", f"{start:%a}".lower(), "weekdays"))
    return f"{days} {start:%H:%M}-{end:%H:%M}{'' if zone == 'UTC' else ' ' + zone}"


ACTIONS: dict[str, Any] = {
    "admin.windows": _windows,
    "admin.maintenance": _maintenance,
    "admin.budget": _budget,
    "admin.queue": _queue,
}
