"""Leases, explanations and nodes on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from aliquot.cli import _words as words
from aliquot.cli._out import missing_table
from aliquot.cli._table import table, table_of
from aliquot.cli._written import written
from aliquot.client import Device, Explanation, Lease, LeaseState, Node, NodeFit, Slice, Tier
from aliquot.common.duration import format_duration_ms
from aliquot.common.tiers import BESIDE_TIERS


def lease_view(lease: Lease) -> list[RenderableType]:
    """A lease in full."""
    things: list[RenderableType] = [
        Text.assemble(
            (lease.lease_id, "bold"),
            "  ",
            (words.asked(lease), "cyan"),
            "  ",
            words.state(lease.state),
            f"  {_story(lease)}",
        )
    ]
    code = "" if lease.exit_code is None else f"exit code {lease.exit_code}"
    facts = {
        "tenant": "another's, of which you may see no more" if lease.redacted else lease.tenant,
        "asked by": lease.asked_by,
        "queue": lease.queue,
        "name": lease.name,
        "note": lease.note,
        "labels": " ".join(f"{key}={value}" for key, value in lease.labels.items()),
        "requeued": str(lease.requeues) if lease.requeues else "",
        "elastic": words.elastic(lease),
        "use": words.use(lease.use),
        "energy": words.energy(lease.energy_mj) if lease.energy_mj is not None else "",
        "ends": words.ends(lease),
        "ended": " ".join(
            filter(None, (lease.end_reason, lease.end_detail, code, lease.ended_by and f"by {lease.ended_by}"))
        ),
    }
    things += [Text.assemble((f"{key:<9}", "bright_black"), value) for key, value in facts.items() if value]
    things += [Text(line, style="yellow") for line in lease.warnings]
    things += [Text(f"set aside: {line}", style="red") for line in lease.set_aside]
    if lease.slices:
        things.append(slices_table(lease.slices))
        things += [Text(line, style="bright_black") for line in dict.fromkeys(_notes(lease.slices))]
    if lease.waiting is not None and lease.state is LeaseState.QUEUED:
        things += explanation_view(lease.waiting)
    return things


def _notes(slices: Iterable[Slice]) -> Iterator[str]:
    for part in slices:
        for note in part.tier_notes:
            if note.startswith(BESIDE_TIERS):
                yield note
            elif part.tier is not Tier.NONE:
                yield f"no stronger tier: {note}"


def _story(lease: Lease) -> str:
    now_ms = int(time.time() * 1000)
    if lease.state is LeaseState.ENDED:
        return f"ended {words.age(lease.ended_ms, now_ms)} ago"
    if lease.granted_ms:
        return f"granted {words.age(lease.granted_ms, now_ms)} ago"
    return f"waiting for {words.age(lease.created_ms, now_ms)}"


def slices_table(slices: Iterable[Slice]) -> Table:
    """The parts of a lease."""
    slices = list(slices)
    return table_of(
        slices,
        _places(slices)
        | {
            "USED": lambda part: words.amount(part.observed_bytes),
            "TIER": lambda part: words.tier(part.tier),
            "STATE": lambda part: words.state(part.state),
            "NOTE": lambda part: "; ".join(filter(None, (part.endpoint and f"served at {part.endpoint}", part.reason))),
        },
        right=("SHARE", "MEMORY", "USED"),
        spare=("MODEL", "USED"),
    )


def places_table(slices: Iterable[Slice]) -> Table:
    """Where the parts of a request would go."""
    slices = list(slices)
    return table_of(slices, _places(slices), right=("SHARE", "MEMORY"))


def _places(slices: Iterable[Slice]) -> dict[str, Callable[[Slice], RenderableType]]:
    device = words.short(part.device_uuid for part in slices)
    return {
        "NODE": lambda part: part.node_name or part.node_id,
        "DEVICE": lambda part: device(part.device_uuid),
        "MODEL": lambda part: words.model(part.device_model, part.mig_profile),
        "SHARE": lambda part: words.share(part.share_milli),
        "MEMORY": lambda part: words.amount(part.memory_bytes),
    }


def fits_table(found: Iterable[NodeFit]) -> Table:
    """Which nodes could take a request: the best first, then the others with what stands against them."""
    return table(
        "NODE",
        ("SCORE", "right"),
        "WHY NOT",
        "DETAIL",
        rows=[
            (fit.node_id, str(fit.score), "", "") if fit.fits else (fit.node_id, words.UNKNOWN, fit.reason, fit.detail)
            for fit in sorted(found, key=lambda fit: -fit.score)
        ],
    )


def weakest_tier(slices: Iterable[Slice]) -> Tier:
    """The weakest tier among a lease's slices: the one its holder can count on."""
    return min((part.tier for part in slices), key=list(Tier).index, default=Tier.UNSPECIFIED)


def used_bytes(lease: Lease) -> int | None:
    """What a lease's processes really hold on all its devices; None if some of it is not known."""
    total = 0
    for part in lease.slices:
        if part.observed_bytes is None:
            return None
        total += part.observed_bytes
    return total if lease.slices else None


def leases_table(leases: Iterable[Lease]) -> Table:
    """Many leases, a line each."""
    now_ms = int(time.time() * 1000)
    return table_of(
        leases,
        {
            "LEASE": lambda lease: lease.lease_id,
            "TENANT": lambda lease: lease.tenant,
            "REQUEST": words.asked,
            "STATE": lambda lease: words.state(lease.state),
            "NODE": lambda lease: words.where(lease.slices),
            "HOLDS": words.holding,
            "USED": lambda lease: words.amount(used_bytes(lease)),
            "TIER": lambda lease: words.tier(weakest_tier(lease.slices)),
            "AGE": lambda lease: words.age(lease.granted_ms or lease.created_ms, now_ms),
            "NAME": lambda lease: lease.name,
        },
        right=("USED", "AGE"),
        spare=("HOLDS", "USED", "TIER", "AGE", "NODE", "TENANT"),
    )


def explanation_view(explanation: Explanation) -> list[RenderableType]:
    """Why a request waits or is refused, or where it would go."""
    colour = "green" if explanation.fits_now else "red" if explanation.impossible else "yellow"
    verdict = "fits now" if explanation.fits_now else "can never fit" if explanation.impossible else "does not fit now"
    things: list[RenderableType]
    if any(phrase in explanation.summary for phrase in ("fit now", "fits now", "never fit")):
        things = [Text(explanation.summary, style=colour)]  # it says so itself, with the amount
    else:
        things = [Text.assemble((verdict, f"bold {colour}"), f"  {explanation.summary}".rstrip())]
    if explanation.queue_position:
        place = f"number {explanation.queue_position} of {explanation.queue_length} in the queue"
        ahead = f"; ahead: {', '.join(explanation.ahead[:4])}" if explanation.ahead else ""
        things.append(Text(place + ahead))
    if explanation.expected_start_ms is not None:
        things.append(Text(_start(explanation, explanation.expected_start_ms, int(time.time() * 1000))))
    elif explanation.start_unknown:
        things.append(Text(f"expected start: {explanation.start_unknown}"))
    if explanation.instead is not None:
        things.append(Text(f"would start now: aliquot alloc {written(explanation.instead)}", style="green"))
    if explanation.would_preempt:
        things.append(Text(f"would preempt {', '.join(explanation.would_preempt)}"))
    if explanation.placement:
        things.append(places_table(explanation.placement))
    if len(explanation.missing) > 1:
        # A single class is in the summary already.
        things.append(missing_table(explanation))
    things += [Text(note, style="bright_black") for note in (explanation.placement_note, *explanation.notes) if note]
    return things


def _start(explanation: Explanation, expected_ms: int, now_ms: int) -> str:
    said = f"expected to start in {_about(expected_ms - now_ms)}"
    if explanation.earliest_start_ms is None or explanation.latest_start_ms is None:
        return said
    ends = (explanation.earliest_start_ms, explanation.latest_start_ms)
    soonest, latest = (_about(at_ms - now_ms) for at_ms in ends)
    return f"{said} (nine times of ten in {soonest} to {latest})"


def _about(duration_ms: int) -> str:
    """In whole seconds, from an hour on in whole minutes, from two days on in whole hours; 0 for what is over."""
    unit_ms = 1_000 if duration_ms < 3_600_000 else 60_000 if duration_ms < 2 * 86_400_000 else 3_600_000
    return format_duration_ms(max(0, duration_ms) // unit_ms * unit_ms)


def vendor_column(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The head of a column of vendors, where there are several."""
    return ("VENDOR",) if len({device.vendor for node in nodes for device in node.devices}) > 1 else ()


def nodes_table(nodes: Iterable[Node]) -> Table:
    """Nodes, a line each."""
    nodes = list(nodes)
    now_ms = int(time.time() * 1000)
    columns: dict[str, Callable[[Node], RenderableType]] = {
        "NODE": lambda node: node.name,
        "ID": lambda node: node.node_id,
        "STATE": _node_state,
        "POOL": lambda node: node.pool,
        **{head: lambda node: words.vendors(node.devices) for head in vendor_column(nodes)},
        "DEVICES": lambda node: (
            f"{len(node.devices)} × {', '.join(sorted({device.model for device in node.devices}))}"
            if node.devices
            else words.UNKNOWN
        ),
        "SHARES": lambda node: (
            f"{words.share(sum(device.leased_share_milli for device in node.devices))} / "
            f"{words.share(sum(device.compute_milli for device in node.devices))}"
        ),
        "MEMORY": lambda node: (
            f"{words.amount(sum(device.leased_memory_bytes for device in node.devices))} / "
            f"{words.amount(sum(device.leasable_bytes for device in node.devices))}"
        ),
        "SLICES": lambda node: str(node.slices),
        "SERVES": lambda node: ", ".join(word.lower() for word in node.serves),
        "HEARD": lambda node: words.age(node.last_heard_ms, now_ms),
        "REASON": lambda node: node.reason or ", ".join(condition.subject for condition in node.conditions),
    }
    spare = ("ID", "HEARD", "POOL", "SERVES", "SLICES", "VENDOR", "SHARES")
    return table_of(nodes, columns, right=("SHARES", "MEMORY", "SLICES", "HEARD"), spare=spare)


def _node_state(node: Node) -> Text:
    state = words.state(node.state)
    if node.draining or node.cordoned:
        state.append(" draining" if node.draining else " cordoned", style="yellow")
    state.append(words.closed(node), style="yellow")
    if node.agentless:
        state.append(" agentless", style="bright_black")
    return state


def devices_table(nodes: Iterable[Node]) -> Table:
    """The devices of nodes, a line each."""
    nodes = list(nodes)
    names = {device.uuid: node.name for node in nodes for device in node.devices}
    short = words.short(names)
    columns: dict[str, Callable[[Device], RenderableType]] = {
        "NODE": lambda device: names[device.uuid],
        "#": words.place,
        "DEVICE": lambda device: short(device.uuid),
        **{head: lambda device: words.vendors([device]) for head in vendor_column(nodes)},
        "MODEL": lambda device: words.model(device.model, device.mig_profile),
        "SHARE": lambda device: words.share(device.leased_share_milli),
        "LEASED": lambda device: f"{words.amount(device.leased_memory_bytes)} / {words.amount(device.leasable_bytes)}",
        "USED": lambda device: words.amount(device.telemetry.memory_used_bytes),
        "FOREIGN": lambda device: words.amount(device.foreign_bytes),
        "GPU": lambda device: words.measured(device.telemetry.gpu_utilisation_percent, "%"),
        "HEAT": lambda device: words.measured(device.telemetry.temperature_c, "°C"),
        "TIERS": lambda device: "whole only" if device.whole_only else words.tiers(device.tiers),
        "HEALTH": lambda device: (
            Text("healthy", "green") if device.healthy else Text(device.health_reason or "unhealthy", "red")
        ),
    }
    right = ("#", "SHARE", "LEASED", "USED", "FOREIGN", "GPU", "HEAT")
    spare = ("TIERS", "FOREIGN", "HEAT", "GPU", "VENDOR", "SHARE", "DEVICE")
    return table_of((device for node in nodes for device in node.devices), columns, right=right, spare=spare)
