"""Draws a snapshot. A device's bar shows its memory: used by leases, reserved beyond that, and foreign. A lease's bar
shows what it uses of its own part. Leases that are used from elsewhere have a table of their own: what is done there.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aliquot.cli import _words as words
from aliquot.cli._table import table_of
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
    placed = [(node, device) for node in nodes for device in node.devices]
    made = table_of(
        placed[:most],
        {
            "NODE": lambda at: at[0].name,
            "#": lambda at: words.place(at[1]),
            **{head: lambda at: words.vendors([at[1]]) for head in vendor_column(nodes)},
            "MODEL": lambda at: words.model(at[1].model, at[1].mig_profile),
            "SHARE": lambda at: words.share(at[1].leased_share_milli),
            "MEMORY": lambda at: _memory_bar(at[1]),
            "USED / RESERVED / ALL": lambda at: " / ".join(
                map(words.amount, (at[1].telemetry.memory_used_bytes, at[1].leased_memory_bytes, _whole_bytes(at[1])))
            ),
            "GPU": lambda at: words.measured(at[1].telemetry.gpu_utilisation_percent, "%"),
            "HEAT": lambda at: words.measured(at[1].telemetry.temperature_c, "°"),
            "": lambda at: _device_state(*at),
        },
        right=("#", "SHARE", "USED / RESERVED / ALL", "GPU", "HEAT"),
        spare=("HEAT", "GPU", "VENDOR", "MODEL", "USED / RESERVED / ALL"),
        one_line=True,
    )
    left = len(placed) - made.row_count
    if left or more_nodes:
        made.caption = f"and {left} devices" + (f" and {more_nodes} nodes" if more_nodes else "") + " more"
    return made


def _whole_bytes(device: Device) -> int:
    return max(1, device.memory_total_bytes - device.memory_reserved_bytes)


def _memory_bar(device: Device) -> Text:
    total, leased = _whole_bytes(device), device.leased_memory_bytes
    ours = max(0, (device.telemetry.memory_used_bytes or 0) - device.foreign_bytes)
    within = min(ours, leased)
    return words.bar(
        (
            (within / total, USED),
            ((leased - within) / total, RESERVED),
            (max(0, ours - leased) / total, OVER),
            (device.foreign_bytes / total, FOREIGN),
        ),
        BAR_WIDTH,
    )


def _device_state(node: Node, device: Device) -> Text:
    state = Text()
    if not device.healthy:
        state.append(device.health_reason or "unhealthy", style="red")
    if node.state != "READY":
        state.append_text(words.state(node.state))
    if node.cordoned or node.draining:
        state.append(" draining" if node.draining else " cordoned", style="yellow")
    return state.append(words.closed(node), style="yellow")


def _leases(snapshot: Snapshot, most: int | None) -> Table:
    shown = snapshot.leases if most is None else snapshot.leases[:most]
    made = table_of(
        shown,
        {
            "LEASE": lambda lease: lease.lease_id,
            "TENANT": lambda lease: lease.tenant,
            "REQUEST": words.asked,
            "STATE": _state,
            "NODE": lambda lease: words.where(lease.slices),
            "SHARE": lambda lease: (
                words.share(sum(part.share_milli for part in lease.slices)) if lease.slices else words.UNKNOWN
            ),
            "MEMORY": lambda lease: _lease_bar(lease, snapshot),
            "USED / ITS PART": lambda lease: (
                f"{words.amount(_observed(lease, snapshot))} / {words.amount(_reserved(lease))}"
                if lease.slices
                else words.UNKNOWN
            ),
            "TIER": lambda lease: words.tier(weakest_tier(lease.slices)),
            "AGE": lambda lease: words.age(lease.granted_ms or lease.created_ms, snapshot.at_ms),
        },
        right=("SHARE", "USED / ITS PART", "AGE"),
        spare=("SHARE", "TIER", "AGE", "MEMORY", "NODE", "TENANT", "REQUEST"),
        one_line=True,
    )
    made.columns[0].min_width = LEASE_ID_WIDTH
    left = len(snapshot.leases) - len(shown) + snapshot.more_leases
    if left:
        made.caption = f"and {left} more"
    return made


def _reserved(lease: Lease) -> int:
    return sum(part.memory_bytes for part in lease.slices)


def _observed(lease: Lease, snapshot: Snapshot) -> int | None:
    known = [snapshot.observed_bytes.get(part.slice_id) for part in lease.slices]
    return None if not known or any(value is None for value in known) else sum(value or 0 for value in known)


def _lease_bar(lease: Lease, snapshot: Snapshot) -> Text:
    reserved, observed = _reserved(lease), _observed(lease, snapshot)
    style = OVER if observed is not None and observed > reserved else USED
    part = 0.0 if not reserved or observed is None else min(1.0, observed / reserved)
    return words.bar(((part, style), (1.0 - part if lease.slices else 0.0, RESERVED)), BAR_WIDTH // 2)


def _state(lease: Lease) -> Text:
    """Also what it does with what it holds, where that is nothing."""
    state = words.state(lease.state)
    use = lease.use
    if use is not None and use.state in (UseState.HELD, UseState.IDLE, UseState.HUNG, UseState.GHOST):
        state = Text.assemble(state, (f" {words.use_state(use)}", "yellow"))
    return state


def total(lease: Lease) -> ServedUse | None:
    """What is done for programs that use a lease from elsewhere, of all its members; None: nothing is known."""
    uses = [part.served for part in lease.slices if part.served is not None]
    if not uses:
        return None
    sums = {name: sum(getattr(use, name) for use in uses) for name in ServedUse.__slots__ if name != "observed_ms"}
    return ServedUse(**sums, observed_ms=min(use.observed_ms for use in uses))


def _served(served: list[tuple[Lease, ServedUse]], most: int | None) -> Table:
    made = table_of(
        served[:most],
        {
            "FROM ELSEWHERE": lambda of: of[0].lease_id,
            "PROGRAMS": lambda of: str(of[1].sessions),
            "OPS/S": lambda of: f"{of[1].ops_per_s:,}",
            "UP/S": lambda of: words.amount(of[1].up_bytes_per_s),
            "DOWN/S": lambda of: words.amount(of[1].down_bytes_per_s),
            "UP": lambda of: words.amount(of[1].up_bytes),
            "DOWN": lambda of: words.amount(of[1].down_bytes),
            "WAITS": lambda of: f"{of[1].waits:,}",
            "AHEAD": lambda of: f"{of[1].run_ahead_frames:,}",
            "HOLDS / PART": lambda of: f"{words.amount(of[1].memory_bytes)} / {words.amount(_reserved(of[0]))}",
        },
        right=("PROGRAMS", "OPS/S", "UP/S", "DOWN/S", "UP", "DOWN", "WAITS", "AHEAD", "HOLDS / PART"),
        spare=("AHEAD", "WAITS", "UP", "DOWN"),
        one_line=True,
    )
    made.columns[0].min_width = LEASE_ID_WIDTH
    if most is not None and len(served) > most:
        made.caption = f"and {len(served) - most} more"
    return made
