"""What amdgpu's compute driver (KFD) says: its nodes, each a card or a part of one, and what processes hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec

from aliquot.agent.core.islands import islands
from aliquot.common.kernel_files import KernelFiles

NODES = "/sys/class/kfd/kfd/topology/nodes"
PROCESSES = "/sys/class/kfd/kfd/proc"
_XGMI = 11
_OWN_HEAPS = (1, 2)


class Node(msgspec.Struct, frozen=True):
    """A card, or a part of one."""

    number: int
    order: int
    """Among the nodes that compute: what ROCR calls it where it has no name."""
    gpu_id: int
    minor: int
    """Of its render node."""
    address: str
    part: int
    """Which part of its card it is, from 0."""
    unique_id: int
    memory_bytes: int
    integrated: bool
    """It is a processor as well, with memory of the machine's."""
    xgmi: frozenset[int]
    """Numbers of nodes that it reaches by links of their own."""


def read_nodes(tree: KernelFiles) -> list[Node]:
    """All that compute; none where there is no KFD."""
    try:
        numbers = sorted(int(name) for name in tree.names(NODES) if name.isdecimal())
    except OSError:
        return []
    found: list[Node] = []
    for number in numbers:
        with contextlib.suppress(OSError, ValueError):
            node = _read(tree, number, len(found))
            if node is not None:
                found.append(node)
    return found


def _read(tree: KernelFiles, number: int, order: int) -> Node | None:
    folder = f"{NODES}/{number}"
    words = _words(tree.read(f"{folder}/properties"))
    gpu_id = int(tree.read(f"{folder}/gpu_id"))
    if not gpu_id or not words.get("simd_count"):
        return None
    location = words.get("location_id", 0)
    address = f"{words.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    banks = [_words(tree.read(f"{folder}/mem_banks/{name}/properties")) for name in _names(tree, f"{folder}/mem_banks")]
    links = [_words(tree.read(f"{folder}/io_links/{name}/properties")) for name in _names(tree, f"{folder}/io_links")]
    return Node(
        number=number,
        order=order,
        gpu_id=gpu_id,
        minor=words.get("drm_render_minor", 0),
        address=address,
        part=location >> 28,
        unique_id=words.get("unique_id", 0),
        memory_bytes=sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _OWN_HEAPS),
        integrated=words.get("cpu_cores_count", 0) > 0,
        xgmi=frozenset(link["node_to"] for link in links if link.get("type") == _XGMI and "node_to" in link),
    )


def reach(nodes: list[Node]) -> dict[int, int]:
    """Of nodes with links of their own: which of them reach one another. Links to processors join none."""
    known = {node.number for node in nodes}
    return islands({node.number: node.xgmi & known for node in nodes})


def held(tree: KernelFiles, gpu_id: int, pids: Iterable[int] | None = None) -> dict[int, int]:
    """By pid: memory of one node that a process has from the compute driver. `pids`: None for all that it knows."""
    found: dict[int, int] = {}
    if pids is None:
        pids = [int(name) for name in _names(tree, PROCESSES) if name.isdecimal()]
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            found[pid] = int(tree.read(f"{PROCESSES}/{pid}/vram_{gpu_id}"))
    return found


def _names(tree: KernelFiles, path: str) -> list[str]:
    try:
        return sorted(tree.names(path))
    except OSError:
        return []


def _words(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        with contextlib.suppress(ValueError):
            found[key] = int(value)
    return found
