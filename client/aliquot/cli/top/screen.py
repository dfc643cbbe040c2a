"""Draws a snapshot. A device's bar shows its memory: used by leases, reserved beyond that, and foreign. A lease's bar
shows what it uses of its own part. Leases that are used from elsewhere have a table of their own: what is done there.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aliquot.cli import _words as words
from aliquot.cli._table import table
from aliquot.cli._views import vendor_column, weakest_tier
from aliquot.cli.top.snapshot import Snapshot
from aliquot.client import Device, Lease, Node, ServedUse
from aliquot.client.use import UseState

USED, RESERVED, FOREIGN, OVER = "green", "blue", "yellow", "red"
BAR_WIDTH = 24
LEASE_ID_WIDTH = 15
SERVED_LINES = 4
"""A blank line, the head, the rule and the caption of the table of what is used from elsewhere."""
FIXED_LINES = 10
"""The legend, two blank lines, the heads, rules and captions of two tables, and the cursor's line."""


def draw(snapshot: Snapshot, *, rows: int | None = None) -> RenderableType:
    """The whole screen, in at most `rows` lines."""
    head = _head(snapshot)
    served = [(lease, use) for lease in snapshot.leases if (use := total(lease)) is not None]
    devices_max = leases_max = served_max = None
    if rows is not None:
        devices = sum(len(node.devices) for node in snapshot.nodes)
        room = max(4, rows - len(head.plain.splitlines()) - FIXED_LINES)
        if served:
            served_max = max(1, min(len(served), room // 4))
            room = max(4, room - SERVED_LINES - served_max)
        # Each part gets half, and what the other one does not need.
        devices_max = max(room // 2, room - len(snapshot.leases))
        leases_max = max(room // 2, room - devices)
    return Group(
        head,
        _legend(),
        Text(),
        _devices(snapshot.nodes, devices_max, snapshot.more_nodes),
        Text(),
        _leases(snapshot, leases_max),
        *((Text(), _served(served, served_max)) if served else ()),
    )


def _head(snapshot: Snapshot) -> Text:
    status = snapshot.status
    head = Text.assemble(("aliquot", "bold"), f"  {', '.join(snapshot.addresses)}  ")
    if status.granting:
        head.append("granting", style="green")
    else:
        head.append(f"not granting: {status.not_granting_reason}", style="bold red")
    states = ", ".join(f"{count} {state.lower()}" for state, count in sorted(status.nodes_by_state.items()))
    head.append(f"  nodes {states or 'none'}  leases {status.leases}, {status.queued} of them queued")
    for totals in status.pools[:6]:
        head.append(
            f"\n{totals.pool}/{totals.model}  "
            f"{words.share(totals.leased_share_milli)} of {words.share(totals.capacity_share_milli)} devices, "
            f"{words.amount(totals.leased_memory_bytes)} of {words.amount(totals.capacity_memory_bytes)} leased",
            style="bright_black",
        )
    return head


def _legend() -> Text:
    legend = Text("memory  ", style="bright_black")
    for style, meaning in ((USED, "used"), (RESERVED, "reserved"), (FOREIGN, "foreign"), (OVER, "over its part")):
        legend.append("█ ", style=style).append(f"{meaning}  ", style="bright_black")
    return legend


def _devices(nodes: Iterable[Node], most: int | None, more_nodes: int) -> Table:
    nodes = list(nodes)
    vendor = vendor_column(nodes)
    made = table(
        "NODE",
        ("#", "right"),
        *vendor,
        "MODEL",
        ("SHARE", "right"),
        "MEMORY",
        ("USED / RESERVED / ALL", "right"),
        ("GPU", "right"),
        ("HEAT", "right"),
        "",
        one_line=True,
        spare=("HEAT", "GPU", "VENDOR", "MODEL", "USED / RESERVED / ALL"),
    )
    left = 0
    for node in nodes:
        for device in node.devices:
            if most is not None and made.row_count >= most:
                left += 1
                continue
            made.add_row(*_device_row(node, device, with_vendor=bool(vendor)))
    if left or more_nodes:
        made.caption = f"and {left} devices" + (f" and {more_nodes} nodes" if more_nodes else "") + " more"
    return made


def _device_row(node: Node, device: Device, *, with_vendor: bool) -> tuple[RenderableType, ...]:
    telemetry = device.telemetry
    total = max(1, device.memory_total_bytes - device.memory_reserved_bytes)
    used = telemetry.memory_used_bytes
    ours = None if used is None else max(0, used - device.foreign_bytes)
    leased = device.leased_memory_bytes
    within = min(ours or 0, leased)
    bar = words.bar(
        (
            (within / total, USED),
            ((leased - within) / total, RESERVED),
            (max(0, (ours or 0) - leased) / total, OVER),
            (device.foreign_bytes / total, FOREIGN),
        ),
        BAR_WIDTH,
    )
    state = Text()
    if not device.healthy:
        state.append(device.health_reason or "unhealthy", style="red")
    if node.state != "READY":
        state.append_text(words.state(node.state))
    if node.cordoned or node.draining:
        state.append(" draining" if node.draining else " cordoned", style="yellow")
    state.append(words.closed(node), style="yellow")
    busy, heat = telemetry.gpu_utilisation_percent, telemetry.temperature_c
    return (
        node.name,
        words.place(device),
        *((words.vendors([device]),) if with_vendor else ()),
        words.model(device.model, device.mig_profile),
        words.share(device.leased_share_milli),
        bar,
        f"{words.amount(used)} / {words.amount(leased)} / {words.amount(total)}",
        words.UNKNOWN if busy is None else f"{busy}%",
        words.UNKNOWN if heat is None else f"{heat}°",
        state,
    )


def _leases(snapshot: Snapshot, most: int | None) -> Table:
    made = table(
        "LEASE",
        "TENANT",
        "REQUEST",
        "STATE",
        "NODE",
        ("SHARE", "right"),
        "MEMORY",
        ("USED / ITS PART", "right"),
        "TIER",
        ("AGE", "right"),
        one_line=True,
        spare=("SHARE", "TIER", "AGE", "MEMORY", "NODE", "TENANT", "REQUEST"),
    )
    made.columns[0].min_width = LEASE_ID_WIDTH
    shown = snapshot.leases if most is None else snapshot.leases[:most]
    for lease in shown:
        made.add_row(*_lease_row(lease, snapshot))
    left = len(snapshot.leases) - len(shown) + snapshot.more_leases
    if left:
        made.caption = f"and {left} more"
    return made


def _state(lease: Lease) -> Text:
    """Also what it does with what it holds, where that is nothing."""
    state = words.state(lease.state)
    use = lease.use
    if use is not None and use.state in (UseState.HELD, UseState.IDLE, UseState.HUNG, UseState.GHOST):
        state = Text.assemble(state, (f" {words.use_state(use)}", "yellow"))
    return state


def _lease_row(lease: Lease, snapshot: Snapshot) -> tuple[RenderableType, ...]:
    reserved = sum(part.memory_bytes for part in lease.slices)
    known = [snapshot.observed_bytes.get(part.slice_id) for part in lease.slices]
    observed = None if not known or any(value is None for value in known) else sum(value or 0 for value in known)
    style = OVER if observed is not None and observed > reserved else USED
    part = 0.0 if not reserved or observed is None else min(1.0, observed / reserved)
    holds = f"{words.amount(observed)} / {words.amount(reserved)}" if lease.slices else words.UNKNOWN
    return (
        lease.lease_id,
        lease.tenant,
        words.asked(lease),
        _state(lease),
        words.where(lease.slices),
        words.share(sum(part.share_milli for part in lease.slices)) if lease.slices else words.UNKNOWN,
        words.bar(((part, style), (1.0 - part if lease.slices else 0.0, RESERVED)), BAR_WIDTH // 2),
        holds,
        words.tier(weakest_tier(lease.slices)),
        words.age(lease.granted_ms or lease.created_ms, snapshot.at_ms),
    )


def total(lease: Lease) -> ServedUse | None:
    """What is done for programs that use a lease from elsewhere, of all its members; None: nothing is known."""
    uses = [part.served for part in lease.slices if part.served is not None]
    if not uses:
        return None
    sums = {name: sum(getattr(use, name) for use in uses) for name in ServedUse.__slots__ if name != "observed_ms"}
    return ServedUse(**sums, observed_ms=min(use.observed_ms for use in uses))


def _served(served: list[tuple[Lease, ServedUse]], most: int | None) -> Table:
    made = table(
        "FROM ELSEWHERE",
        ("PROGRAMS", "right"),
        ("OPS/S", "right"),
        ("UP/S", "right"),
        ("DOWN/S", "right"),
        ("UP", "right"),
        ("DOWN", "right"),
        ("WAITS", "right"),
        ("AHEAD", "right"),
        ("HOLDS / PART", "right"),
        one_line=True,
        spare=("AHEAD", "WAITS", "UP", "DOWN"),
    )
    made.columns[0].min_width = LEASE_ID_WIDTH
    for lease, use in served[:most]:
        made.add_row(
            lease.lease_id,
            str(use.sessions),
            f"{use.ops_per_s:,}",
            words.amount(use.up_bytes_per_s),
            words.amount(use.down_bytes_per_s),
            words.amount(use.up_bytes),
            words.amount(use.down_bytes),
            f"{use.waits:,}",
            f"{use.run_ahead_frames:,}",
            f"{words.amount(use.memory_bytes)} / {words.amount(sum(part.memory_bytes for part in lease.slices))}",
        )
    if most is not None and len(served) > most:
        made.caption = f"and {len(served) - most} more"
    return made
