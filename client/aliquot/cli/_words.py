"""Amounts, ages and states for people; colours mean the same everywhere."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

from rich.text import Text

from aliquot.client import (
    Device,
    Lease,
    LeaseState,
    MaintenancePhase,
    Node,
    NodeState,
    Slice,
    SliceState,
    Tier,
)
from aliquot.client.access import RoleGrant
from aliquot.client.use import LeaseUse, UseState
from aliquot.common.catalog import vendor_title
from aliquot.common.duration import format_duration_ms
from aliquot.common.quantity import format_milli, human_bytes

_COLOURS = {
    LeaseState.QUEUED: "yellow",
    LeaseState.GRANTED: "cyan",
    LeaseState.ACTIVE: "green",
    LeaseState.PREEMPTING: "magenta",
    LeaseState.RELEASING: "blue",
    LeaseState.UNREACHABLE: "red",
    LeaseState.ENDED: "bright_black",
    SliceState.GONE: "bright_black",
    SliceState.FAILED: "red",
    NodeState.READY: "green",
    NodeState.DECLARED: "cyan",
    NodeState.RECONCILING: "yellow",
    NodeState.SUSPECT: "yellow",
    NodeState.LOST: "red",
}
UNKNOWN = "–"
_PREFIX_MIN = len("GPU-01234567")


def state(value: LeaseState | SliceState | NodeState) -> Text:
    """A state's word in its colour."""
    return Text(value.lower(), style=_COLOURS.get(value, ""))


def moment(at_ms: int) -> str:
    """A point in time: `2026-11-28 22:00 UTC`."""
    return f"{dt.datetime.fromtimestamp(at_ms // 1000, dt.UTC):%Y-%m-%d %H:%M} UTC"


def closed(node: Node) -> str:
    """What a maintenance window means for a node now; empty if none closes it."""
    closure = node.closure
    if closure is None:
        return ""
    if closure.phase is MaintenancePhase.OPEN:
        return f" maintenance until {moment(closure.ends_ms)}"
    return f" closing for maintenance at {moment(closure.starts_ms)}"


def share(share_milli: int) -> str:
    """A part of a device: `0.25`, `1`."""
    return format_milli(share_milli)


def amount(value_bytes: int | None) -> str:
    """Bytes: `9.5Gi`; unknown is a dash, never a zero."""
    return UNKNOWN if value_bytes is None else human_bytes(value_bytes)


def energy(millijoules: int) -> str:
    """Energy: `12.3 Wh`, `1.250 kWh`."""
    watt_hours = millijoules / 3_600_000
    return f"{watt_hours:.1f} Wh" if watt_hours < 1000 else f"{watt_hours / 1000:,.3f} kWh"


def measured(value: int | None, unit: str) -> str:
    """A reading: `87%`."""
    return UNKNOWN if value is None else f"{value}{unit}"


def tier(value: Tier) -> str:
    """A tier's word."""
    return UNKNOWN if value is Tier.UNSPECIFIED else value.lower()


def tiers(values: Iterable[Tier]) -> str:
    """How limits can be enforced on a device, strongest first. NONE is left out."""
    known = sorted((value for value in values if value is not Tier.NONE), key=list(Tier).index, reverse=True)
    return " ".join(map(tier, known)) or UNKNOWN


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key by which node-10 comes after node-9."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts)


def age(since_ms: int, now_ms: int | None = None) -> str:
    """How long ago: `12s`, `5m`, `3h`, `2d`."""
    if not since_ms:
        return UNKNOWN
    seconds = max(0, (now_ms if now_ms is not None else int(time.time() * 1000)) - since_ms) // 1000
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def grants(given: Iterable[RoleGrant]) -> str:
    """Roles with their scopes: `user on vision, viewer`."""
    return ", ".join(map(str, given)) or "no role"


def expiry(expires_ms: int) -> str:
    """Until when something counts."""
    return f"expires {moment(expires_ms)}" if expires_ms else "does not expire"


def where(slices: Iterable[Slice]) -> str:
    """The nodes of a lease."""
    names = list(dict.fromkeys(part.node_name or part.node_id for part in slices))
    if not names:
        return UNKNOWN
    return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"


def short(uuids: Iterable[str]) -> Callable[[str], str]:
    """A function that writes each of these UUIDs as its shortest unique prefix."""
    known = sorted(set(uuids))
    need = dict.fromkeys(known, _PREFIX_MIN)
    for one, other in pairwise(known):
        chars = next((n for n, (a, b) in enumerate(zip(one, other, strict=False), 1) if a != b), len(one) + 1)
        need[one], need[other] = max(need[one], chars), max(need[other], chars)

    def write(uuid: str) -> str:
        chars = need.get(uuid, len(uuid))
        return uuid if len(uuid) <= chars + 1 else uuid[:chars] + "…"

    return write


def place(device: Device) -> str:
    """Which card of its node a device is, and where on it a MIG instance begins: `0`, `0/4`."""
    return str(device.index) if device.mig_start is None else f"{device.index}/{device.mig_start}"


def model(name: str, mig_profile: str) -> str:
    """A device's model: `A100-40`, `A100-40 2g.10gb`."""
    return f"{name} {mig_profile}".strip()


def vendors(devices: Iterable[Device]) -> str:
    """Whose devices they are: `NVIDIA, AMD`."""
    return ", ".join(sorted({vendor_title(device.vendor) for device in devices}))


def asked(lease: Lease) -> str:
    """What was asked for: `0.25(A100),10Gi`; for a gang `14 × 0.5`."""
    return lease.gpu if lease.gang_size == 1 else f"{lease.gang_size} × {lease.gpu}"


def elastic(lease: Lease) -> str:
    """How many slices an elastic lease has, and whether its launcher has acknowledged them; empty for a rigid one."""
    if not lease.min_count and not lease.max_count:
        return ""
    text = f"{len(lease.staying)} slices, at least {lease.min_count or UNKNOWN}, at most {lease.max_count or UNKNOWN}"
    if lease.leaving:
        left_s = max(0, max(part.deadline_ms for part in lease.leaving) - int(time.time() * 1000)) // 1000
        text += f"; {len(lease.leaving)} leaving within {left_s} s"
    if lease.shape != lease.acknowledged_shape:
        text += f"; shape {lease.shape} is not acknowledged"
    return text


def holding(lease: Lease) -> str:
    """What a lease holds in all."""
    if not lease.slices:
        return UNKNOWN
    memory = amount(sum(part.memory_bytes for part in lease.slices))
    return f"{share(sum(part.share_milli for part in lease.slices))} · {memory}"


def bar(parts: Iterable[tuple[float, str]], width: int) -> Text:
    """A bar of coloured parts, each a fraction of the whole; what is left stays dim."""
    text = Text()
    used = 0
    total = 0.0
    for fraction, style in parts:
        total += max(0.0, fraction)
        cells = min(width, round(total * width)) - used
        text.append("█" * cells, style=style)
        used += cells
    text.append("·" * (width - used), style="bright_black")
    return text


def use(found: LeaseUse | None) -> str:
    """What a lease does with what it holds, in one line."""
    if found is None:
        return ""
    parts = ["unknown" if found.state is UseState.UNSPECIFIED else use_state(found)]
    if found.since_ms:
        parts.append(f"for {age(found.since_ms)}")
    told = [" ".join(parts)]
    if found.efficiency_permille is not None:
        known = f", {found.known_permille // 10} % of the time known" if found.known_permille is not None else ""
        told.append(f"uses {found.efficiency_permille / 10:.0f} % of its share{known}")
    if found.score_permille is not None:
        told.append(f"score {score(found)}")
    if found.lent:
        told.append("lent" + (" with its memory" if found.lent_memory else ""))
    if found.act_ms:
        told.append(f"{found.action} in {until(found.act_ms)}")
    told.append(exemption(found))
    return "; ".join(filter(None, told))


def score(found: LeaseUse | None) -> str:
    """The score that dashboards know, and what it is called; what is not known is never called idle."""
    if found is None or found.score_permille is None:
        return UNKNOWN
    return f"{found.score_permille / 10:g} {found.utilisation}"


def use_state(found: LeaseUse | None) -> str:
    """One word."""
    return UNKNOWN if found is None or found.state is UseState.UNSPECIFIED else found.state.lower()


def ends(lease: Lease) -> str:
    """When its time limit ends it; empty: it has none, or has ended."""
    if lease.ended_ms or not lease.time_limit_s:
        return ""
    limit = format_duration_ms(1000 * lease.time_limit_s)
    return f"in {until(lease.ends_ms)}, {moment(lease.ends_ms)}" if lease.ends_ms else f"{limit} after it is granted"


def until(at_ms: int) -> str:
    """How long it is until then."""
    return age(int(time.time() * 1000), at_ms)


def exemption(found: LeaseUse) -> str:
    """For how long a lease is exempt, and why; empty: it is not."""
    if found.exempt_until_ms <= time.time() * 1000:
        return ""
    why = f": {found.exempt_reason}" if found.exempt_reason else ""
    return f"exempt for {until(found.exempt_until_ms)}{why}"
