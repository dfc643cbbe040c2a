"""A simulated machine: made, used and changed. Memory is taken by the rules of the kernel's `dmem` controller.

What a group would hold over its limit goes to the machine's memory, where `dmem` does not count it: its older buffers
first, or the new one where that is larger than the limit. Each open file is a real process's: one that has ended lets
go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aliquot.common.processes import start_ticks
from aliquot.simgpu.drm import files
from aliquot.simgpu.drm.books import Books, Card, Held, Part, locked
from aliquot.simgpu.drm.models import MODELS

PART_COUNTS = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}


class OutOfMemory(Exception):
    """The card has no room, or the limit leaves none."""


def create(root: Path, models: Sequence[str], host: str = "host") -> Machine:
    """A machine with these cards, in an empty or a new directory."""
    root.mkdir(parents=True, exist_ok=True)
    for name in ("proc/sys/kernel", "sys/fs/cgroup", "etc"):
        (root / name).mkdir(parents=True)
    (root / "proc/sys/kernel/osrelease").write_text("6.14.0-simulated\n")
    (root / "etc/machine-id").write_text(f"{host}\n")
    machine = Machine(root)
    with machine.changed() as books:
        for place, name in enumerate(models):
            model = MODELS[name]
            card = Card(
                name,
                f"0000:{3 + place:02x}:00.0",
                [],
                unique_id=0x8A0F_0000_0000_0000 + (sum(host.encode()) << 16) + place if model.unique else 0,
                mode="SPX" if model.modes else "",
                banks="NPS1" if model.modes else "",
                memory_bytes=model.memory_bytes,
            )
            _cut(books, card, 1)
            books.cards.append(card)
    return machine


class Machine:
    """See the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def changed(self) -> Iterator[Books]:
        """The books, to be changed; the files follow."""
        with locked(self.root) as books:
            yield books
            reap(books)
            files.show(self.root, books)

    def books(self) -> Books:
        """As they are."""
        with locked(self.root) as books:
            return books

    def address(self, index: int) -> str:
        """Of a card by its place."""
        return self.books().cards[index].address

    # what programs do

    def take(
        self, pid: int, index: int, size: int, *, part: int = 0, cgroup: str | None = None, keep: bool = True
    ) -> int:
        """A process opens a card, or a part of one, and takes memory; its client's number. Raises `OutOfMemory`."""
        with locked(self.root) as books:
            reap(books)
            card = books.cards[index]
            group = _group_of(pid) if cgroup is None else cgroup
            minor = card.parts[part].minor
            held = Held(pid, start_ticks(pid), card.address, minor, books.next_client, group)
            books.next_client += 1
            _charge(books, card, held, size)
            books.held.append(held)
            files.show_use(self.root, books)
            return held.client_id

    def more(self, client_id: int, size: int) -> None:
        """A client takes more. Raises `OutOfMemory`."""
        with locked(self.root) as books:
            reap(books)
            held = next(each for each in books.held if each.client_id == client_id)
            card = next(card for card in books.cards if card.address == held.address)
            _charge(books, card, held, size)
            files.show_use(self.root, books)

    def end(self, pid: int) -> None:
        """A process lets go of everything."""
        with locked(self.root) as books:
            books.held = [each for each in books.held if each.pid != pid]
            files.show_use(self.root, books)

    def share(self, client_id: int, pid: int) -> None:
        """A client's open file is handed to another process."""
        with locked(self.root) as books:
            held = next(each for each in books.held if each.client_id == client_id)
            books.held.append(Held(pid, start_ticks(pid), held.address, held.minor, client_id, held.cgroup))
            shared = books.held[-1]
            shared.memory_bytes, shared.spilled_bytes = 0, 0
            files.show_use(self.root, books)

    # what happens to cards

    def cut(self, index: int, mode: str, banks: str = "NPS1") -> None:
        """A card is cut anew: whoever used it has lost it."""
        with self.changed() as books:
            card = books.cards[index]
            books.held = [each for each in books.held if each.address != card.address]
            card.mode, card.banks = mode, banks
            _cut(books, card, PART_COUNTS[mode])

    def set_virtual(self, index: int, count: int) -> None:
        """A card is cut into so many virtual functions; 0: into none."""
        with self.changed() as books:
            card = books.cards[index]
            books.cards = [each for each in books.cards if each.parent != card.address]
            card.virtual = count
            for number in range(1, count + 1):
                own = Card(
                    card.model,
                    f"{card.address[:-1]}{number}",
                    [],
                    parent=card.address,
                    memory_bytes=card.memory_bytes // count,
                )
                _cut(books, own, 1)
                books.cards.append(own)

    def link(self, *places: int) -> None:
        """Cards get links of their own to one another."""
        with self.changed() as books:
            addresses = [books.cards[place].address for place in places]
            for place in places:
                card = books.cards[place]
                card.links = [address for address in addresses if address != card.address]

    def unplug(self, index: int) -> None:
        """It falls off the bus."""
        with self.changed() as books:
            books.cards[index].plugged = False
            address = books.cards[index].address
            books.held = [each for each in books.held if each.address != address]

    def plug(self, index: int) -> None:
        """It is back, with other minors."""
        with self.changed() as books:
            books.cards[index].plugged = True
            _renumber(books, books.cards[index])

    def unload(self, index: int) -> None:
        """Its driver goes, and with it every region, limit and open file."""
        with self.changed() as books:
            card = books.cards[index]
            card.loaded = False
            books.held = [each for each in books.held if each.address != card.address]
            for limits in books.limits.values():
                for region in [region for region in limits if region.split("/")[1] == card.address]:
                    del limits[region]

    def load(self, index: int) -> None:
        """Its driver comes back, with other minors."""
        with self.changed() as books:
            books.cards[index].loaded = True
            _renumber(books, books.cards[index])


def order_limit(books: Books, cgroup: str, text: str) -> None:
    """What is written to `dmem.max`: `<region> <bytes|max>`. Raises `ValueError` as the kernel answers EINVAL. A limit
    below what is held is taken without an error, and the old one stays.
    """
    region, _, value = text.strip().partition(" ")
    if region not in files.regions(books):
        raise ValueError(region)
    if books.deaf:
        return
    limits = books.limits.setdefault(cgroup, {})
    if value == "max":
        limits.pop(region, None)
        return
    wanted = memparse(value)
    if wanted >= files.used(books, cgroup, region):
        limits[region] = wanted


def memparse(value: str) -> int:
    """As the kernel reads numbers. Raises `ValueError`."""
    suffix = value[-1:].upper()
    shift = {"K": 10, "M": 20, "G": 30, "T": 40}.get(suffix)
    return int(value[:-1]) << shift if shift is not None else int(value)


def _charge(books: Books, card: Card, held: Held, size: int) -> None:
    room = _room(books, card, held)
    if size > room:
        if not books.spills:
            raise OutOfMemory(f"{size} bytes of {room}")
        # The group's own buffers give way, its oldest first; what would not even fit alone goes there itself.
        limit = room + _own(books, held)
        if size > limit:
            held.spilled_bytes += size
            return
        missing = size - room
        for each in [*(other for other in books.held if _same(other, held)), held]:
            moved = min(missing, each.memory_bytes)
            each.memory_bytes -= moved
            each.spilled_bytes += moved
            missing -= moved
    free = (
        card.memory_bytes
        - card.overhead_bytes
        - sum(each.memory_bytes for each in books.held if each.address == card.address and each is not held)
    )
    if held.memory_bytes + size > free:
        raise OutOfMemory(f"{size} bytes of {free - held.memory_bytes}")
    held.memory_bytes += size


def _same(other: Held, held: Held) -> bool:
    return other is not held and other.address == held.address and other.cgroup == held.cgroup


def _own(books: Books, held: Held) -> int:
    return held.memory_bytes + sum(each.memory_bytes for each in books.held if _same(each, held))


def _room(books: Books, card: Card, held: Held) -> int:
    """What limits leave to a client: those of its cgroup and of all above."""
    room = card.memory_bytes
    for region in files.regions(books):
        if region.split("/")[1] != card.address:
            continue
        group = held.cgroup
        while True:
            limit = books.limits.get(group or "/", {}).get(region)
            if limit is not None:
                room = min(room, limit - files.used(books, group or "/", region) - _unbooked(books, held))
            if not group or group == "/":
                break
            group = group.rpartition("/")[0]
    return max(0, room)


def _unbooked(books: Books, held: Held) -> int:
    return 0 if any(each is held for each in books.held) else held.memory_bytes


def _cut(books: Books, card: Card, count: int) -> None:
    compute = MODELS[card.model].driver == "amdgpu"
    card.parts = [
        Part(0, number, 20_000 + books.next_minor + number if compute else 0, card.memory_bytes // count)
        for number in range(count)
    ]
    _renumber(books, card)


def _renumber(books: Books, card: Card) -> None:
    for part in card.parts:
        part.minor = books.next_minor
        books.next_minor += 1


def reap(books: Books) -> None:
    """Processes that have ended hold nothing."""
    books.held = [each for each in books.held if each.started is not None and start_ticks(each.pid) == each.started]


def _group_of(pid: int) -> str:
    """A process's real cgroup v2."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "/"
    return next((line[3:] for line in lines if line.startswith("0::")), "/")
