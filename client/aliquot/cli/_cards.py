"""Shows the MIG instances of cards on a terminal: which memory slices they use, who holds them, what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from aliquot.cli import _words as words
from aliquot.cli._table import table
from aliquot.client import Device, MigCard, Node

FREE = Text("free", "green")
NOT_CUT = Text("not cut", "bright_black")
NO_COMPUTE = Text("has no compute instance", "yellow")


class _Piece(NamedTuple):
    """Adjacent memory slices of a card."""

    start: int | None
    length: int | None
    """None: its node does not report it."""
    profile: str
    device: Device | None
    """None: these slices are not used, or belong to an instance without compute."""


def cards_view(nodes: Iterable[Node]) -> list[RenderableType]:
    """The cards in MIG mode of nodes, a line for each instance and each gap between them; empty if there are none."""
    rows: list[tuple[RenderableType, ...]] = []
    notes: list[RenderableType] = []
    nodes = list(nodes)
    cards = [(node.name, *card) for node in nodes for card in _cards(node)]
    short = words.short([uuid for _, uuid, *_ in cards] + [device.uuid for node in nodes for device in node.devices])
    for name, uuid, model, pieces in cards:
        rows += [(name, short(uuid), model, *_row(piece, short)) for piece in pieces]
    for node in nodes:
        notes += [note for card in node.cards for note in _notes(node, card)]
    if not rows and not notes:
        return []
    columns = table(
        "NODE",
        "CARD",
        "MODEL",
        "SLICES",
        "INSTANCE",
        "DEVICE",
        ("COMPUTE", "right"),
        ("MEMORY", "right"),
        "HELD BY",
        spare=("DEVICE", "MODEL", "MEMORY"),
        rows=rows,
    )
    return [columns, *notes]


def _cards(node: Node) -> Iterator[tuple[str, str, list[_Piece]]]:
    """(card, model, pieces in order), by the card's number."""
    instances: dict[str, list[Device]] = {}
    for device in sorted(node.devices, key=lambda device: device.index):
        if device.mig_profile:
            instances.setdefault(device.parent_uuid, []).append(device)
    offered = {card.uuid: card for card in node.cards}
    for uuid in dict.fromkeys((*instances, *offered)):
        there, card = instances.get(uuid, []), offered.get(uuid)
        if card is not None:
            yield uuid, card.model, list(_pieces_of(card, there))
        else:
            there.sort(key=lambda device: (device.mig_start is None, device.mig_start or 0))
            yield uuid, there[0].model, [_Piece(each.mig_start, None, each.mig_profile, each) for each in there]


def _pieces_of(card: MigCard, instances: Iterable[Device]) -> Iterator[_Piece]:
    """The instances of a card that the pool may change, and the slices between them."""
    devices = {device.uuid: device for device in instances}
    lengths = {profile.name: profile.length for profile in card.profiles}
    end = max((start + profile.length for profile in card.profiles for start in profile.starts), default=0)
    at = 0
    for part in sorted(card.parts, key=lambda part: part.start):
        if part.start > at:
            yield _Piece(at, part.start - at, "", None)
        length = lengths.get(part.profile)
        yield _Piece(part.start, length, part.profile, devices.get(part.uuid))
        at = part.start + (length or 1)
    if end > at:
        yield _Piece(at, end - at, "", None)


def _row(piece: _Piece, short: Callable[[str], str]) -> tuple[RenderableType, ...]:
    device = piece.device
    if device is None:
        state = NO_COMPUTE if piece.profile else NOT_CUT
        return (_slices(piece), piece.profile or words.UNKNOWN, "", "", "", state)
    holders: RenderableType = Text(", ".join(device.lease_ids)) if device.lease_ids else FREE
    if not device.lease_ids and not device.healthy:
        holders = Text(device.health_reason or "unhealthy", "red")
    return (
        _slices(piece),
        piece.profile,
        short(device.uuid),
        words.share(device.compute_milli),
        words.amount(device.leasable_bytes),
        holders,
    )


def _slices(piece: _Piece) -> str:
    if piece.start is None:
        return words.UNKNOWN
    if piece.length is None:
        return f"from {piece.start}"
    return str(piece.start) if piece.length == 1 else f"{piece.start}–{piece.start + piece.length - 1}"


def _notes(node: Node, card: MigCard) -> Iterator[Text]:
    if card.cut_for:
        yield Text(f"{node.name}: {card.uuid} is being cut for {card.cut_for}", style="yellow")
    elif card.problem:
        yield Text(f"{node.name}: {card.uuid} could not be cut: {card.problem}", style="yellow")
