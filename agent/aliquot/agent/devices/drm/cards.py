"""Which cards there are, and of which parts each is: by sysfs, KFD and cgroups.

A card that is cut into parts is listed as its parts, each named by how the card is cut: cut otherwise, it has other
parts. Cards that can't be leased are listed too, with the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from aliquot.agent.core import dmem
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.devices.drm.kfd import NODES, Node, reach, read_nodes
from aliquot.agent.devices.drm.names import product_name
from aliquot.common.catalog import canonical_model
from aliquot.common.kernel_files import KernelFiles
from aliquot.common.limits import WHOLE_SHARE_MILLI

CLASS = "/sys/class/drm"
PCI = "/sys/bus/pci/devices"
VENDORS = {"amdgpu": "amd", "xe": "intel", "i915": "intel"}
_MACHINE = ("/sys/class/dmi/id/product_uuid", "/etc/machine-id")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RENDER = re.compile(r"(renderD|card)(\d+)")


class Found(msgspec.Struct, frozen=True):
    """A card, or a part of one."""

    info: DeviceInfo
    driver: str
    minors: frozenset[int]
    """Of the files that open it and nothing else."""
    node: Node | None = None
    cut: str = ""
    """How its card is cut (`CPX/NPS4`); empty: it can't be."""
    parts: int = 1
    """Of its card."""
    why_not: str = ""
    """Why it can't be leased."""
    divided: bool = False
    """Its parts are devices, and it is none."""
    opened_by: frozenset[str] = frozenset()
    """The files that open its card, by name: others after its driver was loaded again."""
    place: int = 0
    """Among Intel's cards, in the order of the bus."""


class Inventory(msgspec.Struct, frozen=True):
    """Everything that was found."""

    found: tuple[Found, ...]
    problems: tuple[str, ...]


def look(tree: KernelFiles) -> Inventory:
    """Every card of a driver that is known. Raises `OSError` where there are no DRM devices at all."""
    problems: list[str] = []
    minors = _minors(tree, problems)
    nodes = read_nodes(tree)
    linked = reach(nodes)
    memory = capacities(tree)
    found: list[Found] = []
    intel = sorted(address for address, (driver, _) in minors.items() if VENDORS.get(driver) == "intel")
    for index, address in enumerate(sorted(minors)):
        driver, own = minors[address]
        try:
            if driver == "amdgpu":
                found += _amd(tree, index, address, own, [node for node in nodes if node.address == address], linked)
            elif driver in VENDORS:
                card = _intel(tree, index, address, driver, own, memory)
                found.append(replace(card, place=intel.index(address)))
        except (OSError, ValueError) as error:
            problems.append(f"{address} ({driver}): {error}")
    names = {address: opened_by(tree, address) for address in minors}
    return Inventory(tuple(replace(each, opened_by=names[each.info.pci_bus_id]) for each in found), tuple(problems))


def capacities(tree: KernelFiles) -> dict[str, int | None]:
    """Regions of device memory that cgroups count, each with its size; none where the kernel has no `dmem`."""
    mount = tree.cgroups()
    if mount is None:
        return {}
    with contextlib.suppress(FileNotFoundError):
        return dmem.parse(tree.read(f"{mount.directory}/dmem.capacity"))
    return {}


def cut_of(tree: KernelFiles, address: str) -> str:
    """How an AMD card is cut now; empty where it can't be. Raises `OSError` where the driver does not say, as while it
    resets the card.
    """
    words = (text(tree, f"{PCI}/{address}/current_{what}_partition", refused=True) for what in ("compute", "memory"))
    return "/".join(filter(None, words))


def opened_by(tree: KernelFiles, address: str) -> frozenset[str]:
    """The names of a card's own files now; its parts' are elsewhere."""
    try:
        return frozenset(name for name in tree.names(f"{PCI}/{address}/drm") if _RENDER.fullmatch(name))
    except OSError:
        return frozenset()


def text(tree: KernelFiles, path: str, *, refused: bool = False) -> str:
    """A file in one line; empty where there is none. `refused`: raises `OSError` where there is one, and it can't be
    read.
    """
    with contextlib.suppress(FileNotFoundError if refused else OSError):
        return tree.read(path).strip()
    return ""


def number(tree: KernelFiles, path: str) -> int | None:
    """A file with a number; None where there is none."""
    try:
        return int(tree.read(path), 0)
    except (OSError, ValueError):
        return None


def _minors(tree: KernelFiles, problems: list[str]) -> dict[str, tuple[str, dict[int, bool]]]:
    """By address: the driver, and the card's minors, each with whether it is the card's own (not a part's)."""
    found: dict[str, tuple[str, dict[int, bool]]] = {}
    for name in sorted(tree.names(CLASS)):
        match = _RENDER.fullmatch(name)
        if match is None:
            continue
        folder = tree.real(f"{CLASS}/{name}/device")
        address = folder.rpartition("/")[2]
        if _ADDRESS.fullmatch(address):
            try:
                driver = tree.link(f"{folder}/driver").rpartition("/")[2]
            except FileNotFoundError:
                continue  # it has left the bus, or its driver has let it go
            except OSError as error:
                problems.append(f"{name}: {error}")
            else:
                found.setdefault(address, (driver, {}))[1][int(match[2])] = True
    return found


def _amd(
    tree: KernelFiles, index: int, address: str, own: Mapping[int, bool], nodes: list[Node], linked: Mapping[int, int]
) -> list[Found]:
    folder = f"{PCI}/{address}"
    total_bytes = int(tree.read(f"{folder}/mem_info_vram_total"))
    unique = text(tree, f"{folder}/unique_id", refused=True)
    uuid = f"GPU-{int(unique, 16):016x}" if unique.strip("0") else f"AMD-{_machine(tree)}-{address}"
    name = text(tree, f"{folder}/product_name") or product_name(
        text(tree, f"{folder}/vendor"), text(tree, f"{folder}/device")
    )
    whole = DeviceInfo(
        uuid=uuid,
        index=index,
        product_name=name,
        model=canonical_model(name, total_bytes),
        vendor="amd",
        memory_total_bytes=total_bytes,
        memory_reserved_bytes=0,
        pci_bus_id=address,
        numa_node=_numa(tree, address),
        fabric_island=linked.get(nodes[0].number) if len(nodes) == 1 else None,
    )
    cut = cut_of(tree, address)
    mode, _, banks = cut.partition("/")
    if len(nodes) <= 1 and mode not in ("", "SPX"):
        raise ValueError(f"it is cut ({cut}), and its parts can't be read in {NODES}")
    if mode in ("", "SPX"):
        why = "it shares the machine's own memory" if nodes and nodes[0].integrated else ""
        return [Found(whole, "amdgpu", frozenset(own), nodes[0] if nodes else None, cut, why_not=why)]
    memory_parts = int(banks.removeprefix("NPS") or 1) if banks.removeprefix("NPS").isdecimal() else 1
    parts = sorted(nodes, key=lambda node: (node.part, node.minor))
    return [
        Found(
            replace(
                whole,
                uuid=f"{uuid}-{mode.lower()}-{(banks or 'nps1').lower()}-{place}",
                parent_uuid=uuid,
                memory_total_bytes=node.memory_bytes or total_bytes // len(parts),
                memory_shared=memory_parts < len(parts),
                compute_milli=WHOLE_SHARE_MILLI // len(parts),
                fabric_island=None,
            ),
            "amdgpu",
            frozenset({node.minor}),
            node,
            cut,
            len(parts),
        )
        for place, node in enumerate(parts)
    ]


def _intel(
    tree: KernelFiles,
    index: int,
    address: str,
    driver: str,
    own: Mapping[int, bool],
    memory: Mapping[str, int | None],
) -> Found:
    folder = f"{PCI}/{address}"
    name = product_name(text(tree, f"{folder}/vendor"), text(tree, f"{folder}/device"))
    regions = [memory[region] or 0 for region in dmem.regions_of(dict(memory), address)]
    machine = _machine(tree)
    parent = _target(tree, f"{folder}/physfn")
    why, divided = "", False
    if driver == "i915":
        why = "the driver i915 does not tell how much memory the card has, nor how much is in use: use xe"
    elif number(tree, f"{folder}/sriov_numvfs"):
        why, divided = "it is cut into virtual functions, which are devices of their own", True
    elif not regions:
        why = "its memory is not told: that needs Linux 6.14 with CONFIG_CGROUP_DMEM, and cgroup v2"
    siblings = number(tree, f"{PCI}/{parent}/sriov_numvfs") if parent else None
    info = DeviceInfo(
        uuid=f"XE-{machine}-{address}",
        index=index,
        product_name=name,
        model=canonical_model(name, sum(regions) or None),
        vendor="intel",
        memory_total_bytes=sum(regions),
        memory_reserved_bytes=0,
        pci_bus_id=address,
        numa_node=_numa(tree, address),
        parent_uuid=f"XE-{machine}-{parent}" if parent else "",
        compute_milli=WHOLE_SHARE_MILLI // max(1, siblings or 1),
    )
    return Found(info, driver, frozenset(own), parts=max(1, siblings or 1), why_not=why, divided=divided)


def _target(tree: KernelFiles, path: str) -> str:
    try:
        return tree.link(path).rpartition("/")[2]
    except OSError:
        return ""


def _numa(tree: KernelFiles, address: str) -> int | None:
    found = number(tree, f"{PCI}/{address}/numa_node")
    return found if found is not None and found >= 0 else None


def _machine(tree: KernelFiles) -> str:
    """Tells cards without an identity of their own from those at the same address of other machines."""
    for path in _MACHINE:
        if found := text(tree, path):
            return hashlib.sha256(f"aliquot {found.lower()}".encode()).hexdigest()[:12]
    raise OSError(f"none of {', '.join(_MACHINE)} can be read: the cards have no identity")
