"""How cards in MIG mode are cut, as `aliquot nodes` shows it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, RenderableType

from aliquot.cli._cards import cards_view
from aliquot.cli._views import devices_table, nodes_table
from aliquot.cli.top import screen
from aliquot.client import Device, MigCard, MigPart, MigProfile, Node, NodeState, Telemetry

GIB = 1 << 30
PROFILES = (
    MigProfile("1g.5gb", 1, 5 * GIB, 1, (0, 1, 2, 3, 4, 5, 6)),
    MigProfile("3g.20gb", 3, 20 * GIB, 4, (0, 4)),
    MigProfile("7g.40gb", 7, 40 * GIB, 8, (0,)),
)


def instance(profile: str, start: int | None, compute_milli: int, *lease_ids: str) -> Device:
    return Device(
        uuid=f"MIG-{profile}-{start}",
        index=2,
        model="A100-40",
        vendor="nvidia",
        product_name="",
        node_id="n",
        memory_total_bytes=5 * GIB,
        memory_reserved_bytes=0,
        foreign_bytes=0,
        leased_share_milli=compute_milli if lease_ids else 0,
        leased_memory_bytes=5 * GIB if lease_ids else 0,
        healthy=True,
        health_reason="",
        mig_profile=profile,
        parent_uuid="GPU-card",
        nvlink_island=None,
        numa_node=None,
        pci_bus_id="",
        tiers=(),
        telemetry=Telemetry(),
        compute_milli=compute_milli,
        mig_start=start,
        lease_ids=lease_ids,
    )


def node(devices: Sequence[Device], *cards: MigCard) -> Node:
    return Node(
        node_id="n",
        name="gpu-1",
        state=NodeState.READY,
        cordoned=False,
        draining=False,
        reason="",
        pool="default",
        labels={},
        devices=tuple(devices),
        cpu_milli=None,
        host_memory_bytes=None,
        agentless=False,
        agent_version="",
        driver_version="",
        last_heard_ms=0,
        slices=0,
        failure_domain="",
        cards=cards,
    )


def lines(things: Sequence[RenderableType]) -> list[list[str]]:
    console = Console(width=240, no_color=True, file=io.StringIO(), record=True)
    for thing in things:
        console.print(thing)
    return [line.split() for line in console.export_text().splitlines()]


CARD = MigCard(
    uuid="GPU-card",
    model="A100-40",
    profiles=PROFILES,
    parts=(MigPart("3g.20gb", 4, "MIG-3g.20gb-4"), MigPart("1g.5gb", 1, "MIG-1g.5gb-1"), MigPart("1g.5gb", 2, "")),
    cut_for="",
    problem="",
)


def test_every_slice_of_a_card_is_somebodys_free_or_not_cut() -> None:
    devices = [instance("3g.20gb", 4, 428, "lease-a"), instance("1g.5gb", 1, 142)]
    shown = lines(cards_view([node(devices, CARD)]))[2:]
    assert shown == [
        ["gpu-1", "GPU-card", "A100-40", "0", "–", "not", "cut"],
        ["gpu-1", "GPU-card", "A100-40", "1", "1g.5gb", "MIG-1g.5gb-1", "0.142", "5Gi", "free"],
        ["gpu-1", "GPU-card", "A100-40", "2", "1g.5gb", "has", "no", "compute", "instance"],
        ["gpu-1", "GPU-card", "A100-40", "3", "–", "not", "cut"],
        ["gpu-1", "GPU-card", "A100-40", "4–7", "3g.20gb", "MIG-3g.20gb-4", "0.428", "5Gi", "lease-a"],
    ]


def test_cards_that_are_not_to_be_cut_show_their_instances_in_order() -> None:
    devices = [instance("3g.20gb", 4, 428), instance("1g.5gb", 1, 142, "lease-b"), instance("1g.5gb", None, 142)]
    shown = lines(cards_view([node(devices)]))[2:]
    assert [line[3:5] for line in shown] == [["from", "1"], ["from", "4"], ["–", "1g.5gb"]]


def test_what_is_done_about_a_card_is_said() -> None:
    def last(card: MigCard) -> str:
        return " ".join(lines(cards_view([node([], card)]))[-1])

    assert last(replace(CARD, cut_for="lease-c")) == "gpu-1: GPU-card is being cut for lease-c"
    assert last(replace(CARD, problem="1g.5gb from 1 is in use")).endswith("could not be cut: 1g.5gb from 1 is in use")
    assert cards_view([node([])]) == []


def test_shares_are_of_what_there_is() -> None:
    machine = node([instance("3g.20gb", 4, 428, "lease-a"), instance("1g.5gb", 1, 142)])
    assert "0.428 / 0.57" in " ".join(lines([nodes_table([machine])])[2])
    shown = [" ".join(line) for line in lines([devices_table([machine])])[2:]]
    assert shown[0].startswith("gpu-1 2/4 MIG-3g.20gb-4 A100-40 3g.20gb 0.428")


def test_vendors_are_shown_where_there_are_several() -> None:
    nvidia = node([instance("", None, 1000)])
    amd = replace(nvidia, name="gpu-2", devices=(replace(nvidia.devices[0], vendor="amd", model="MI300X"),))
    mixed = replace(nvidia, name="gpu-3", devices=(*nvidia.devices, *amd.devices))
    looks = [
        [nodes_table(nodes), devices_table(nodes), screen_of(nodes)] for nodes in ([nvidia], [nvidia, amd], [mixed])
    ]
    alone, apart, together = [[word for line in lines(look) for word in line] for look in looks]
    assert "VENDOR" not in alone
    assert apart.count("VENDOR") == together.count("VENDOR") == 3
    assert apart.count("AMD") == 3
    assert "AMD," in together


def screen_of(nodes: list[Node]) -> RenderableType:
    """The devices of `top`."""
    return screen._devices(nodes, None, 0)
