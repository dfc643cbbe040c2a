"""What a simulated machine is and holds, in one file: cards, limits, and who has what memory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from aliquot.common.own_files import write_whole


class Part(msgspec.Struct):
    """What programs open: a card, or a part of one."""

    minor: int
    number: int = 0
    gpu_id: int = 0
    memory_bytes: int = 0


class Card(msgspec.Struct):
    """A card in a slot."""

    model: str
    address: str
    parts: list[Part]
    unique_id: int = 0
    mode: str = ""
    banks: str = ""
    virtual: int = 0
    """Virtual functions that it is cut into."""
    parent: str = ""
    """Of a virtual function: its card's address."""
    memory_bytes: int = 0
    overhead_bytes: int = 0
    """In use by the driver itself."""
    plugged: bool = True
    loaded: bool = True
    """Its driver is."""
    counted: bool = True
    """The kernel counts its memory by cgroup."""
    busy_percent: int = 0
    temperature_c: int = 40
    power_w: int = 90
    uncorrected: int = 0
    links: list[str] = []
    """Addresses of cards that it has links of its own to (XGMI, Xe Link)."""
    links_down: int = 0
    """Of these, how many are down."""
    bad_pages: str = ""
    """Flags of retired pages, such as `RP`."""


class Held(msgspec.Struct):
    """An open file of a card."""

    pid: int
    started: int | None
    """Of the process, so that another one with its number is not taken for it."""
    address: str
    minor: int
    client_id: int
    cgroup: str
    memory_bytes: int = 0
    spilled_bytes: int = 0
    """In the machine's memory."""
    descriptors: int = 1
    """How many times it is open."""
    engine_ns: int = 0
    untold: bool = False
    """Its file says nothing of memory."""


class Books(msgspec.Struct):
    """All of it."""

    cards: list[Card] = []
    held: list[Held] = []
    limits: dict[str, dict[str, int]] = {}
    """By cgroup, then region."""
    enabled: list[str] = []
    """Cgroups whose children have the controller."""
    groups: list[str] = []
    """Cgroups that there are, as /proc/pid/cgroup names them, but for the root."""
    next_client: int = 1
    next_minor: int = 128
    controller: bool = True
    """The kernel has `dmem`."""
    spills: bool = True
    """Buffers over a limit go to the machine's memory; else the call fails."""
    deaf: bool = False
    """Limits are taken and not kept."""


@contextmanager
def locked(root: Path) -> Iterator[Books]:
    """The books, kept as they are left. One at a time, among all processes."""
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        file = root / "books.json"
        before = file.read_bytes() if file.exists() else b"{}"
        books = msgspec.json.decode(before, type=Books)
        yield books
        after = msgspec.json.encode(books)
        if after != before:
            write_whole(file, after, mode=0o644, durable=False)
    finally:
        os.close(descriptor)
