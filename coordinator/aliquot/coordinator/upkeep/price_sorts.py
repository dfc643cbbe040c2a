"""What of a mix of requests the price programme looks at: sorts of slices, and of places for several devices.

Requests that take the same of a device are of one sort, whatever CPU they want beside it; those for several whole
devices of one node are apart by their CPU, too, because it decides which nodes can have them at all. Where anybody
asks for several, nodes that few requests need are kept from the first lesson on: each kind of node counts as asked for
once as a whole (`unseen`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aliquot.coordinator.core.inventory.records import CPU_UNLIMITED, DeviceClass
from aliquot.coordinator.core.placement.matching import instances_among
from aliquot.coordinator.core.placement.mix import CPU_MILLI, ClassTotals
from aliquot.coordinator.core.placement.worth import like, slice_on
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand

SORTS_MAX = 64
"""Rarer sorts count as the most similar of so many: the programme stays small, and prices are not truer."""

PLACES_MAX = 16
"""The same for sorts for several devices, besides."""

Entries = list[tuple[int, int]]
"""Of one sort: (CPU of a slice or of a place for several, number of them)."""


def merge_classes(classes: Sequence[ClassTotals]) -> list[ClassTotals]:
    """Classes with devices, those as one that share a table of worth."""
    merged: dict[DeviceClass, ClassTotals] = {}
    for each in classes:
        of = like(each.device_class)
        first = merged.get(of, ClassTotals(of, 0, 0))
        merged[of] = ClassTotals(
            of,
            first.devices + each.devices,
            first.idle_milli + each.idle_milli,
            first.nodes + each.nodes,
            first.empty_nodes + each.empty_nodes,
        )
    return [each for each in merged.values() if each.devices]


def unseen(classes: Sequence[ClassTotals]) -> list[Demand]:
    """One request for all of a node, for each kind of node with several devices: by their number, and by the first two
    binary digits of its CPU, of which the request wants what all of them have.

    Requests for the widest nodes, or those with the most CPU, are often the rarest, and what they need would be gone
    before the first of them has come. Among hundreds of real requests one more of each kind says little.
    """
    least: dict[tuple[int, int, int], int] = {}
    for each in classes:
        for devices, cpu_milli, _ in () if each.device_class.mig_profile else each.empty_nodes:
            cores = cpu_milli // CPU_MILLI if cpu_milli < CPU_UNLIMITED // CPU_MILLI * CPU_MILLI else 0
            digits = cores.bit_length()
            kind = devices, digits, cores >> max(digits - 2, 0)
            least[kind] = min(least.get(kind, cores), cores)
    return [Demand(count=devices, cpu_milli=cores * CPU_MILLI) for (devices, _, _), cores in sorted(least.items())]


def sorts_of(mix: Mapping[Demand, int], classes: Sequence[DeviceClass]) -> dict[Demand, Entries]:
    """Sorts that some class serves, the most frequent ones."""
    found: dict[Demand, Entries] = {}
    for demand, count in mix.items():
        if not demand.count or count <= 0:
            continue
        share = demand.share_milli or (0 if demand.memory_bytes else WHOLE_SHARE_MILLI)
        devices = demand.count if share == WHOLE_SHARE_MILLI and not demand.mig_profile else 1
        cpu_milli = -(-demand.cpu_milli // CPU_MILLI) * CPU_MILLI if devices > 1 else 0
        sort = Demand(
            count=devices,
            share_milli=share,
            memory_bytes=demand.memory_bytes,
            models=demand.models,
            vendor=demand.vendor,
            mig_profile=demand.mig_profile,
            cpu_milli=cpu_milli,
            vendors=demand.vendors,
            instances=instances_among(demand, classes),
        )
        each_has = demand.count // devices
        found.setdefault(sort, []).append((demand.cpu_milli // each_has, count * each_has * demand.gang_size))
    servable = {sort: slices for sort in found if any(slices := [slice_on(each, sort) for each in classes])}
    sizes = {sort: _size(slices, classes) for sort, slices in servable.items()}
    demanded = {sort: sizes[sort][0] * sort.count * sum(n for _, n in found[sort]) for sort in servable}
    largest = sorted(servable, key=lambda sort: (-demanded[sort], repr(sort)))
    single, several = [[sort for sort in largest if (sort.count > 1) == wide] for wide in (False, True)]
    priced = [*single[:SORTS_MAX], *several[:PLACES_MAX]]
    kept = {sort: found[sort] for sort in priced}
    suits = {sort: (sort.count, *(each is not None for each in slices)) for sort, slices in servable.items()}
    for sort in (*single[SORTS_MAX:], *several[PLACES_MAX:]):
        similar = [other for other in priced if suits[other] == suits[sort]]
        if similar:
            nearest = min(
                similar,
                key=lambda other: (
                    abs(sizes[other][0] - sizes[sort][0]) + abs(sizes[other][1] - sizes[sort][1]),
                    abs(other.cpu_milli - sort.cpu_milli),
                ),
            )
            kept[nearest] = kept[nearest] + found[sort]
    return kept


def _size(slices: Sequence[tuple[int, int] | None], classes: Sequence[DeviceClass]) -> tuple[float, float]:
    """(share, memory) of a slice, as parts of a device, in the class that it takes least of."""
    return min(
        (
            (found[0] / WHOLE_SHARE_MILLI, found[1] / each.leasable_bytes)
            for found, each in zip(slices, classes, strict=True)
            if found is not None
        ),
        key=sum,
    )
