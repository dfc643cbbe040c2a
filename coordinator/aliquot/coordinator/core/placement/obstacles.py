"""The first obstacle between a demand and one class of devices, in the order in which a user could remove it:
what can never fit there, what the request's own filters exclude, what is not ready, what is held.
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from aliquot.common import catalog
from aliquot.common.tiers import Tier
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.matching import Match, instances_among, is_part
from aliquot.coordinator.core.placement.reasons import RESTRICTED, Reason
from aliquot.coordinator.core.placement.room import listed_rows, members_per_node, members_per_row, slots_per_device
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable, shape_of
from aliquot.coordinator.core.values.types import SERVE_LABELS, WHOLE_SHARE_MILLI, Demand, Missing, Topology

GIB = 1 << 30


def gib(memory_bytes: int) -> str:
    """Bytes for people: `10.0Gi`."""
    return f"{memory_bytes / GIB:.1f}Gi"


def at_most(memory_bytes: int) -> int:
    """An amount that people read and write, no more than this: half GiBs, below one MiBs."""
    step = GIB >> 1 if memory_bytes >= GIB else 1 << 20
    return memory_bytes // step * step


def charge(share_milli: int, memory_bytes: int) -> str:
    """A slice for people: `0.285 of the compute and 19.5Gi`."""
    return f"{share_milli / 1000:g} of the compute and {gib(memory_bytes)}"


def describe(demand: Demand) -> str:
    """The demand in a few words."""
    parts = []
    if demand.share_milli and demand.share_milli != WHOLE_SHARE_MILLI:
        parts.append(f"share {demand.share_milli / 1000:g}")
    if demand.memory_bytes:
        parts.append(gib(demand.memory_bytes))
    what = demand.mig_profile or " and ".join(parts) or "whole"
    text = f"{demand.count} device{'s' if demand.count != 1 else ''} ({what})"
    return f"a gang of {demand.gang_size} × {text}" if demand.gang_size > 1 else text


class ClassObstacles:
    """Looks at one demand and one device class."""

    def __init__(self, inventory: Inventory, demand: Demand, class_id: int, matches: tuple[Match, ...] = ()) -> None:
        """`matches`: the profiles that serve the demand, where MIG instances do (`Matcher.matches`)."""
        own = inventory.classes[class_id]
        self._asked, self._matches = demand, matches
        self._match = next(
            (m for m in matches if (m.demand.mig_profile, m.demand.models[0][0]) == (own.mig_profile, own.model)), None
        )
        demand = self._match.demand if self._match is not None else demand
        self._inventory = inventory
        self._demand = demand
        self._class = inventory.classes[class_id]
        table = inventory.table
        self._rows = table.rows
        self._mine: Bools = table.class_id[: table.rows] == class_id
        self.devices = int(table.width[: table.rows][self._mine].sum())
        named = any(self._class.model in models for models in demand.models)
        self.shape = shape_of(demand, (self._class.model,) if named else ())
        """What is looked for on these devices."""
        self._shapes = ShapeTable(inventory)
        self._shapes.put(0, self.shape)

    def first(self) -> Missing:
        """The first obstacle; `FITS` where there is none."""
        return self.kind() or self._structure() or self._room()

    def _missing(self, reason: Reason, detail: str, change: str = "", **changed: object) -> Missing:
        """`changed`: what of the demand the change is, where it is one."""
        instead = msgspec.structs.replace(self._asked, **changed) if changed else None
        return Missing(self._class.label, reason.value, detail, change, self.devices, instead)

    def kind(self) -> Missing | None:
        """What can never be got of such devices."""
        demand, own = self._demand, self._class
        wanted = sorted({model for models in self._asked.models for model in models})
        if not self._asked.takes_vendor(own.vendor):
            wants = " or ".join(map(catalog.vendor_title, self._asked.vendors or (self._asked.vendor,)))
            has = catalog.vendor_title(own.vendor)
            detail = f"the request is for devices of {wants}; these are of {has}"
            vendors = (*(self._asked.vendors or (self._asked.vendor,)), own.vendor)
            changed = {} if wanted else {"vendor": "", "vendors": vendors}
            return self._missing(Reason.OTHER_VENDOR, detail, f"allow {own.vendor}", **changed)
        if wanted and own.model not in wanted:
            models = (*self._asked.models, (own.model,))
            return self._missing(Reason.OTHER_MODEL, self._other_model(wanted), f"allow {own.model}", models=models)
        if own.mig_profile != demand.mig_profile:
            return self._other_profile()
        if not own.mig_profile and demand.min_tier >= Tier.MIG and is_part(demand):
            return self._missing(Reason.TIER, "these cards are not cut into MIG instances", "ask for a lower tier")
        if own.whole_only and is_part(demand):
            detail = f"a {own.model} serves one program at a time, so it is leased whole"
            whole = {"share_milli": WHOLE_SHARE_MILLI, "memory_bytes": 0, "or_mig": False}
            return self._missing(Reason.WHOLE_ONLY, detail, "ask for whole devices", **whole)
        if own.slice_of(self.shape) is None:
            _, memory = own.size_of(self.shape)
            most = at_most(own.leasable_bytes)
            return self._missing(
                Reason.MEMORY_OVER_DEVICE,
                f"{gib(memory)} on one device was asked for; these have {gib(own.leasable_bytes)} to lease",
                f"ask for at most {gib(most)} per device",
                memory_bytes=most,
            )
        return None

    def _other_model(self, wanted: list[str]) -> str:
        """Which models were asked for; and of which vendor, where that alone keeps these devices out."""
        detail = f"the request names {', '.join(wanted)}"
        vendors = {catalog.vendor_of(model) for model in wanted}
        if None in vendors or self._class.vendor in vendors:
            return detail
        whose = " and ".join(sorted(catalog.vendor_title(vendor) for vendor in vendors if vendor))
        return f"{detail}, of {whose}; these are of {catalog.vendor_title(self._class.vendor)}"

    def _other_profile(self) -> Missing:
        """Why instances of this profile don't serve it, and with which change they would."""
        demand, own, missing = self._demand, self._class, partial(self._missing, Reason.OTHER_PROFILE)
        if demand.mig_profile:
            return missing(f"not a {demand.mig_profile} instance", "ask without a MIG profile")
        if self._matches:
            best = next((m for m in self._matches if m.demand.models[0][0] == own.model), self._matches[0])
            what = charge(best.compute_milli, best.memory_bytes)
            return missing(f"it is served by the smallest profile with as much, {best.demand.mig_profile} ({what})")
        as_instance = msgspec.structs.replace(self.shape, mig_profile=own.mig_profile)
        if is_part(demand) and own.slice_of(as_instance) is None:
            what = charge(own.compute_milli, own.leasable_bytes)
            return missing(f"a {own.mig_profile} has no more than {what}", f"ask for at most {what}")
        detail = "MIG instances serve who names their profile, asks for the tier mig, or finds no undivided card"
        willing = msgspec.structs.replace(demand, or_mig=True)
        if (own.model, own.mig_profile) in instances_among(willing, self._inventory.classes):
            detail = f"{detail}; or who says that either will do"
            return missing(detail, f"ask with or_mig, or for {own.mig_profile}", or_mig=True)
        return missing(detail, f"ask for {own.mig_profile}")

    def _structure(self) -> Missing | None:
        inventory, shape, table, rows = self._inventory, self.shape, self._inventory.table, self._rows
        mine = self._mine
        if shape.pool:
            pool = inventory.pools.index(shape.pool) if shape.pool in inventory.pools else -1
            mine = mine & (table.pool[:rows] == pool)
            if not mine.any():
                return self._missing(Reason.OTHER_POOL, f"none in pool {shape.pool!r}", "ask in another pool", pool="")
        widest = int(table.width[:rows][mine].max(initial=0))
        if widest < shape.count:
            return self._missing(
                Reason.TOO_FEW_DEVICES_ON_NODE,
                f"{shape.count} on one node were asked for; no node has more than {widest}",
                f"ask for at most {widest} per member, or for a gang",
                count=widest,
            )
        if shape.topology == Topology.REQUIRE_ISLAND and self._largest_island(mine) < shape.count:
            return self._missing(
                Reason.NO_ISLAND,
                f"no island of linked devices has {shape.count} of these",
                "prefer an island instead of requiring it",
                topology=Topology.PREFER_ISLAND,
            )
        eligible = self._shapes.eligible_rows(0) & mine
        if not eligible.any():
            return self._unselected()
        if not (eligible & listed_rows(inventory, self._demand)).any():
            return self._missing(
                Reason.NODE_LIST,
                "the request keeps to, or avoids, nodes so that none is left",
                "widen the node list",
                node_ids=(),
                avoid_node_ids=(),
            )
        return None

    def _unselected(self) -> Missing:
        keys = [key for key, _ in self.shape.node_selector]
        if keys and all(key.startswith(SERVE_LABELS) for key in keys):
            return self._missing(
                Reason.SERVE,
                f"no agent of these devices can serve {keys[0].removeprefix(SERVE_LABELS)} leases",
                "ask for a local lease, or install what serves it on these nodes",
            )
        labels = ", ".join(f"{key}={value}" for key, value in self.shape.node_selector)
        if labels:
            return self._missing(
                Reason.SELECTOR,
                f"no node with these devices has the labels {labels}",
                "drop the node selector",
                node_selector=tuple(each for each in self._asked.node_selector if each[0].startswith(SERVE_LABELS)),
            )
        return self._missing(
            Reason.TIER, "no agent of these devices can give the tier asked for", "ask for a lower tier"
        )

    def _largest_island(self, mine: Bools) -> int:
        table = self._inventory.table
        islands = table.island[: self._rows][mine]
        numbers = range(int(table.islands[: self._rows][mine].max(initial=0)))
        return max((int((islands == number).sum(axis=1).max(initial=0)) for number in numbers), default=0)

    def _members(self, rows: Bools, demand: Demand, *, empty: bool = False) -> int:
        per_row = members_per_row(self._inventory, self._shapes, 0, rows, empty=empty)
        return int(members_per_node(self._inventory, demand, self.shape, per_row, empty=empty).sum())

    def _room(self) -> Missing:
        """Obstacles of quantity: what the hosts have, then what comes and goes."""
        demand, shape = self._demand, self.shape
        eligible = self._shapes.eligible_rows(0) & self._mine & listed_rows(self._inventory, demand)
        empty = self._members(eligible, demand, empty=True)
        if not empty:
            return self._missing(
                Reason.HOST_TOO_SMALL,
                f"no node has {shape.cpu_milli / 1000:g} CPUs and {gib(shape.host_memory_bytes)} of memory",
                "ask for less CPU or memory",
            )
        cards, or_share = (" on a card each", ", or let them share cards (same_card)") if shape.apart else ("", "")
        if empty < demand.gang_size:
            return self._missing(
                Reason.GANG_OVER_POOL,
                f"{demand.gang_size} members{cards} were asked for; the empty pool has room for {empty}",
                f"ask for at most {empty} members{or_share}",
                gang_size=empty,
            )
        now = self._members(eligible, demand)
        if now >= demand.gang_size:
            return self._missing(Reason.FITS, "it fits now")
        if self._inventory.restricted and (found := self._restricted(eligible)) is not None:
            return found
        if now:
            return self._missing(
                Reason.GANG_TOO_LARGE_NOW,
                f"{now} of {demand.gang_size} members fit now{cards}",
                f"a gang of {now}, or {demand.gang_size - now} more places of {describe(shape)}{or_share}",
                gang_size=now,
            )
        ready = eligible & self._inventory.table.grantable[: self._rows]
        if not ready.any():
            return self._missing(
                Reason.NOT_READY,
                "no node with these devices accepts grants now",
                "wait for a node to become ready",
            )
        if demand.max_per_node and self._members(ready, shape):
            return self._missing(
                Reason.ANTI_AFFINITY,
                f"every node that fits already has {demand.max_per_node} of group {demand.affinity_group!r}",
                f"allow {demand.max_per_node + 1} per node",
                max_per_node=demand.max_per_node + 1,
            )
        return self._held(ready)

    def _restricted(self, eligible: Bools) -> Missing | None:
        """Said where it would fit, were it admitted on all devices."""
        for most, said in RESTRICTED.items():
            if most > self._demand.admitted_on:
                with self._inventory.trial() as opened:
                    if opened.admit(most) and self._members(eligible, self._demand) >= self._demand.gang_size:
                        return self._missing(said.reason, f"devices that are free {said.why}", said.change)
        return None

    def _held(self, ready: Bools) -> Missing:
        shape, table, rows = self.shape, self._inventory.table, self._rows
        slots = slots_per_device(self._inventory, self._shapes, 0)[ready]
        fitting = (slots > 0).sum(axis=1)
        best = int(fitting.max(initial=0))
        if best >= shape.count:
            if shape.topology == Topology.REQUIRE_ISLAND and members_of_any(slots, shape.count):
                return self._missing(
                    Reason.FRAGMENTED,
                    f"{best} devices of one node fit, but not {shape.count} of one island",
                    "prefer an island instead of requiring it",
                    topology=Topology.PREFER_ISLAND,
                )
            return self._missing(
                Reason.HOST_HELD,
                "CPU or memory of every node whose devices fit is held",
                "ask for less CPU or memory",
            )
        if best:
            return self._missing(
                Reason.FRAGMENTED,
                f"{int(fitting.sum())} devices fit, but at most {best} of the {shape.count} on one node",
                f"ask for {best} per member, or wait for {shape.count - best} more on one node",
                count=best,
            )
        return self._no_device(table.share_left[:rows][ready], table.memory_left[:rows][ready])

    def _no_device(self, left: Ints, memory_left: Ints) -> Missing:
        """No single device fits: by share or by memory, and by how little."""
        share, memory = self._class.size_of(self.shape)
        top = int(left.max(initial=0))
        if not top:
            return self._missing(
                Reason.UNAVAILABLE, "every device is fully held, unhealthy or draining", "wait for a release"
            )
        least = min(share, top)
        most = at_most(max(int(memory_left[left >= least].max(initial=0)), 0))
        if top < share:
            what = "whole devices were" if share == WHOLE_SHARE_MILLI else f"share {share / 1000:g} was"
            detail = f"{what} asked for; the most any device has left is {top / 1000:g}"
            # Memory that goes with a share goes down with it; what was asked for by itself stays if it can.
            goes_with = memory_left * WHOLE_SHARE_MILLI // self._class.leasable_bytes
            stays = np.where(memory_left >= memory, left, 0)
            able = max(int((stays if self._asked.memory_bytes else np.minimum(left, goes_with)).max(initial=0)), 0)
            wait = f"wait for {(share - top) / 1000:g} more there"
            if able:
                change = f"ask for share {able / 1000:g}, or {wait}"
                return self._missing(Reason.SHARE_HELD, detail, change, share_milli=able)
            if not most:
                return self._missing(Reason.SHARE_HELD, detail, wait)
            change = f"ask for share {top / 1000:g} and {gib(most)}, or {wait}"
            return self._missing(Reason.SHARE_HELD, detail, change, share_milli=top, memory_bytes=most)
        detail = f"{gib(memory)} was asked for; devices with the share left have at most {gib(most)}"
        wait = f"wait for {gib(memory - most)} more there"
        if not most:
            return self._missing(Reason.MEMORY_HELD, detail, wait)
        return self._missing(Reason.MEMORY_HELD, detail, f"ask for {gib(most)}, or {wait}", memory_bytes=most)


def members_of_any(slots: Ints, count: int) -> bool:
    """Does some row have `count` devices with a slot?"""
    return bool(((slots > 0).sum(axis=1) >= count).any())
