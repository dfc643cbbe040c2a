"""Cards in MIG mode on a simulated machine: its driver makes and destroys their parts, and a restart loses them.

Its functions replace those of `aliquot.agent.enforce.mig_geometry` where agents cut cards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from aliquot.agent.core.partitioning import Card, Instance, Part, Profile, Recut
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError
from tests.simulation.sim.loop import current

if TYPE_CHECKING:
    from tests.simulation.sim.machine import SimMachine

MIB = 1 << 20
PROFILES = (
    Profile(0, 19, "1g.5gb", 1, 4_864 * MIB, (0, 1, 2, 3, 4, 5, 6), 1),
    Profile(1, 14, "2g.10gb", 2, 9_856 * MIB, (0, 2, 4), 2),
    Profile(2, 9, "3g.20gb", 3, 19_968 * MIB, (0, 4), 4),
    Profile(3, 5, "4g.20gb", 4, 19_968 * MIB, (0,), 4),
    Profile(4, 0, "7g.40gb", 7, 40_192 * MIB, (0,), 8),
)
"""Of an A100 with 40 GB."""
BEGINNINGS = ((), ((2, 0), (2, 4)), tuple((0, start) for start in range(7)), ((4, 0),), ((1, 0), (0, 2), (0, 3)))
"""How administrators have cut cards: (profile, start)."""
COMPUTE_SLICES = 7


class SimCard:
    """One card."""

    def __init__(self, machine: SimMachine, number: int, beginning: tuple[tuple[int, int], ...]) -> None:
        self.machine = machine
        self.uuid = f"GPU-{machine.node_id}-card-{number}"
        self.number = number
        self.failing = 0
        """So many times, its driver fails half way."""
        self.failed = False
        """It has done so: who knows how it is cut."""
        self.instances: dict[int, Instance] = {}
        self.uuids: dict[int, str] = {}
        self.on_destroyed: Callable[[str], None] = lambda uuid: None
        self._made = 0
        for profile, start in beginning:
            self.make(PROFILES[profile], start)

    def make(self, profile: Profile, start: int) -> None:
        """A part more. Raises EnforcementError."""
        from tests.simulation.sim.machine import SimDevice

        span = range(start, start + profile.length)
        for other in self.instances.values():
            if set(span) & set(range(other.start, other.start + other.length)):
                raise EnforcementError(f"{profile.name} from {start} does not fit")
        self._made += 1
        number, uuid = self._made, f"MIG-{self.uuid}-{self._made}"
        self.instances[number] = Instance(number, profile.profile_id, start, profile.length, in_use=False)
        self.uuids[number] = uuid
        info = DeviceInfo(
            uuid=uuid,
            index=self.number,
            product_name=f"NVIDIA A100-SXM4-40GB MIG {profile.name}",
            model="A100-40",
            vendor="nvidia",
            memory_total_bytes=profile.memory_bytes,
            memory_reserved_bytes=16 * MIB,
            mig_profile=profile.name,
            parent_uuid=self.uuid,
            gpu_instance_id=number,
            compute_milli=profile.compute_slices * 1000 // COMPUTE_SLICES,
            mig_start=start,
        )
        self.machine.devices[uuid] = SimDevice(info)

    def destroy(self, number: int) -> None:
        """A part less. Raises EnforcementError while a process is on it."""
        uuid = self.uuids[number]
        if self.machine.listed(uuid):
            raise EnforcementError(f"{uuid} is in use")
        self.on_destroyed(uuid)
        del self.instances[number], self.uuids[number], self.machine.devices[uuid]

    def clear(self) -> None:
        """The machine is off: nothing of this is kept anywhere."""
        for uuid in self.uuids.values():
            del self.machine.devices[uuid]
        self.instances.clear()
        self.uuids.clear()

    def parts(self) -> tuple[tuple[str, int], ...]:
        """(profile, start) of each."""
        names = {profile.profile_id: profile.name for profile in PROFILES}
        return tuple(sorted((names[each.profile_id], each.start) for each in self.instances.values()))

    def as_read(self) -> Card:
        """As the driver shows it."""
        names = {profile.profile_id: profile.name for profile in PROFILES}
        parts = [(Part(each.start, names[each.profile_id]), self.uuids[n]) for n, each in self.instances.items()]
        return Card(self.uuid, "A100-40", PROFILES, tuple(sorted(parts)))


def _card(uuid: str) -> SimCard:
    card: SimCard | None = current().host.cards.get(uuid)
    if card is None:
        raise EnforcementError(f"{uuid} can't be cut: there is no such card")
    return card


def read_instances(uuid: str, profiles: Collection[Profile]) -> tuple[Instance, ...]:
    """See `mig_geometry.read_instances`."""
    card = _card(uuid)
    return tuple(
        Instance(n, each.profile_id, each.start, each.length, bool(card.machine.listed(card.uuids[n])))
        for n, each in card.instances.items()
    )


def apply(uuid: str, recut: Recut) -> None:
    """See `mig_geometry.apply`."""
    if recut.problem:
        raise EnforcementError(recut.problem)
    card = _card(uuid)
    card.machine.events += 1
    for instance in recut.destroy:
        card.destroy(instance.instance_id)
    for placement in recut.create:
        if card.failing:
            card.failing -= 1
            card.failed = True
            raise EnforcementError(f"{uuid} can't be cut as planned: insufficient resources")
        card.make(placement.profile, placement.start)
