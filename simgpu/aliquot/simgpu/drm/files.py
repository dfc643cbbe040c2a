"""Shows the books of a simulated machine as the kernel's files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from aliquot.common.own_files import write_whole
from aliquot.simgpu.drm.books import Books, Card, Held
from aliquot.simgpu.drm.models import MODELS

CGROUPS = "sys/fs/cgroup"
KFD_PROCESSES = "sys/class/kfd/kfd/proc"
_BUS = "sys/devices/pci0000:00"
_XGMI = 11


def show(root: Path, books: Books) -> None:
    """Everything that follows from the books."""
    show_cards(root, books)
    show_use(root, books)


def show_cards(root: Path, books: Books) -> None:
    """Slots, drivers and parts. What stays as it was is not touched: somebody may be reading it."""
    wanted: dict[Path, str | Path] = {}
    number = 1
    nodes: dict[str, int] = {}
    for card in books.cards:
        if card.plugged:
            _show_card(wanted, root, books, card)
            if MODELS[card.model].driver == "amdgpu" and card.loaded:
                nodes[card.address] = number
                number = _show_nodes(wanted, root, card, number)
    for card in books.cards:
        if card.address in nodes and len(card.parts) == 1:
            _show_links(wanted, root, card, nodes)
    for folder in ("sys/class/drm", "sys/bus/pci/devices"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in (_BUS, "sys/class", "sys/bus", "sys/devices/platform"):
        _clear(root / folder, wanted, root / KFD_PROCESSES)
    for path, what in wanted.items():
        if isinstance(what, Path):
            if not path.is_symlink():
                _link(path, what)
        elif not path.exists() or path.read_text(encoding="utf-8").strip() != what:
            _put(path, what)


def _clear(top: Path, wanted: Mapping[Path, object], kept: Path) -> None:
    """Whatever is below and is not wanted, but for what changes with use."""
    for folder, folders, names in os.walk(top, topdown=False):
        here = Path(folder)
        if here == kept or kept in here.parents:
            continue
        for name in (*names, *folders):
            path = here / name
            if (name in names or path.is_symlink()) and path not in wanted and not name.endswith("_used"):
                path.unlink()
        if not any(here.iterdir()) and here.name not in ("drm", "devices"):
            here.rmdir()


def _show_card(wanted: dict[Path, str | Path], root: Path, books: Books, card: Card) -> None:
    model = MODELS[card.model]
    folder = root / _BUS / card.address
    files = {"vendor": model.vendor_id, "device": model.device_id, "numa_node": "0"}
    files |= {"current_link_width": "16", "max_link_width": "16"}
    if model.driver == "amdgpu":
        files |= {
            "mem_info_vram_total": str(card.memory_bytes),
            "gpu_busy_percent": str(card.busy_percent),
            "pcie_replay_count": "0",
            "ras/umc_err_count": f"ue: {card.uncorrected}\nce: 0",
            "hwmon/hwmon0/temp1_label": "edge",
            "hwmon/hwmon0/temp1_input": str(card.temperature_c * 1000),
            "hwmon/hwmon0/temp3_label": "mem",
            "hwmon/hwmon0/temp3_input": str((card.temperature_c + 8) * 1000),
            "hwmon/hwmon0/power1_average": str(card.power_w * 1_000_000),
            "hwmon/hwmon0/power1_cap": "750000000",
        }
        if model.unique:
            files["unique_id"] = f"{card.unique_id:016x}"
        if model.product_name:
            files["product_name"] = model.product_name
        if card.mode:
            files |= {"current_compute_partition": card.mode, "current_memory_partition": card.banks}
        if card.bad_pages:
            files["ras/gpu_vram_bad_pages"] = "\n".join(
                f"0x{place:08x} : 0x00001000 : {flag}" for place, flag in enumerate(card.bad_pages)
            )
    else:
        files |= {
            "sriov_numvfs": str(card.virtual),
            "hwmon/hwmon0/temp2_label": "pkg",
            "hwmon/hwmon0/temp2_input": str(card.temperature_c * 1000),
            "hwmon/hwmon0/temp3_label": "vram",
            "hwmon/hwmon0/temp3_input": str((card.temperature_c + 8) * 1000),
            "hwmon/hwmon0/power1_max": "190000000",
        }
    # What these drivers show in no file, and their vendors' libraries learn otherwise: for the stand-ins of those.
    files["simulated_uncorrected"] = str(card.uncorrected)
    if card.links:
        up = len(card.links) - card.links_down
        files["simulated_links"] = "\n".join(f"{to} {int(place < up)}" for place, to in enumerate(card.links))
    wanted |= {folder / name: text for name, text in files.items()}
    wanted[root / "sys/bus/pci/devices" / card.address] = folder
    if card.parent:
        wanted[folder / "physfn"] = root / _BUS / card.parent
    if card.loaded:
        wanted[folder / "driver"] = root / "sys/bus/pci/drivers" / model.driver
        place = [other.address for other in books.cards].index(card.address)
        names = [f"card{place}", f"renderD{card.parts[0].minor}"]
        for name in names:
            wanted[folder / "drm" / name / "device"] = folder
            wanted[root / "sys/class/drm" / name] = folder / "drm" / name
        for part in card.parts[1:]:
            own = root / "sys/devices/platform" / f"amdgpu_xcp_{part.minor}"
            wanted[own / "drm" / f"renderD{part.minor}" / "device"] = own
            wanted[root / "sys/class/drm" / f"renderD{part.minor}"] = own / "drm" / f"renderD{part.minor}"


def _show_nodes(wanted: dict[Path, str | Path], root: Path, card: Card, number: int) -> int:
    domain, bus, rest = card.address.split(":")
    slot, _, function = rest.partition(".")
    location = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
    for part in card.parts:
        folder = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
        words = {
            "cpu_cores_count": 16 if MODELS[card.model].integrated else 0,
            "simd_count": 1216,
            "location_id": location | part.number << 28,
            "domain": int(domain, 16),
            "drm_render_minor": part.minor,
            "unique_id": card.unique_id,
        }
        wanted[folder / "properties"] = "\n".join(f"{key} {value}" for key, value in words.items())
        wanted[folder / "gpu_id"] = str(part.gpu_id)
        wanted[folder / "mem_banks/0/properties"] = f"heap_type 1\nsize_in_bytes {part.memory_bytes}"
        number += 1
    return number


def _show_links(wanted: dict[Path, str | Path], root: Path, card: Card, nodes: Mapping[str, int]) -> None:
    """As the compute driver tells links to other cards: by node."""
    here = root / "sys/class/kfd/kfd/topology/nodes" / str(nodes[card.address]) / "io_links"
    for place, address in enumerate(card.links):
        if address in nodes:
            words = f"type {_XGMI}\nnode_from {nodes[card.address]}\nnode_to {nodes[address]}"
            wanted[here / str(place) / "properties"] = words


def show_use(root: Path, books: Books) -> None:
    """Who holds what: of cards, of processes, of cgroups."""
    for card in books.cards:
        if card.plugged and card.loaded and MODELS[card.model].driver == "amdgpu":
            used = card.overhead_bytes + sum(each.memory_bytes for each in books.held if each.address == card.address)
            _put(root / _BUS / card.address / "mem_info_vram_used", str(used))
    _show_processes(root, books)
    _show_compute(root, books)
    show_groups(root, books)


def _show_processes(root: Path, books: Books) -> None:
    top = root / "proc"
    by_pid: dict[int, list[Held]] = {}
    for each in books.held:
        by_pid.setdefault(each.pid, []).append(each)
    for name in os.listdir(top):  # noqa: PTH208
        if name.isdecimal() and int(name) not in by_pid:
            shutil.rmtree(top / name, ignore_errors=True)
    for pid, held in by_pid.items():
        number = 3
        wanted: dict[str, str] = {}
        for each in held:
            card = next((card for card in books.cards if card.address == each.address), None)
            if card is None or not (card.plugged and card.loaded):
                continue
            for _ in range(each.descriptors):
                wanted[str(number)] = _fdinfo(card, each)
                link = top / str(pid) / "fd" / str(number)
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.is_symlink():
                    link.symlink_to(f"/dev/dri/renderD{each.minor}")
                _put(top / str(pid) / "fdinfo" / str(number), wanted[str(number)])
                number += 1
        for name in os.listdir(top / str(pid) / "fd") if (top / str(pid) / "fd").exists() else ():  # noqa: PTH208
            if name not in wanted:
                (top / str(pid) / "fd" / name).unlink()


def _fdinfo(card: Card, held: Held) -> str:
    model = MODELS[card.model]
    lines = ["pos:\t0", "flags:\t02100002", "mnt_id:\t27", f"drm-driver:\t{model.driver}"]
    lines += [f"drm-client-id:\t{held.client_id}", f"drm-pdev:\t{card.address}"]
    if held.untold:
        pass
    elif model.driver == "amdgpu":
        lines += [
            "pasid:\t32770",
            f"drm-total-vram:\t{held.memory_bytes // 1024} KiB",
            f"drm-resident-vram:\t{held.memory_bytes // 1024} KiB",
            f"drm-memory-vram:\t{held.memory_bytes // 1024} KiB",
            f"drm-resident-gtt:\t{held.spilled_bytes // 1024} KiB",
            "amd-evicted-vram:\t0 KiB",
            f"drm-engine-compute:\t{held.engine_ns} ns",
        ]
    elif model.driver == "xe":
        per_region = held.memory_bytes // model.regions
        for region in range(model.regions):
            lines += [f"drm-total-vram{region}:\t{per_region}", f"drm-resident-vram{region}:\t{per_region}"]
        lines += [
            f"drm-resident-gtt:\t{held.spilled_bytes}",
            f"drm-cycles-ccs:\t{held.engine_ns}",
            "drm-total-cycles-ccs:\t1000000000",
        ]
    else:
        own = f"{held.memory_bytes // 1024} KiB"
        spilled = f"{held.spilled_bytes // 1024} KiB"
        lines += [f"drm-total-system0:\t{spilled}", f"drm-resident-system0:\t{spilled}"]
        if not model.integrated:
            lines += [f"drm-total-local0:\t{own}", f"drm-resident-local0:\t{own}"]
        lines += [f"drm-engine-{name}:\t0 ns" for name in ("render", "copy", "video", "video-enhance")]
        lines += ["drm-engine-capacity-video:\t2", f"drm-engine-compute:\t{held.engine_ns} ns"]
    return "\n".join(lines)


def _show_compute(root: Path, books: Books) -> None:
    top = root / KFD_PROCESSES
    top.mkdir(parents=True, exist_ok=True)
    parts = {part.minor: part for card in books.cards for part in card.parts}
    sums: dict[tuple[int, int], int] = {}
    for each in books.held:
        part = parts.get(each.minor)
        if part is not None and part.gpu_id:
            sums[each.pid, part.gpu_id] = sums.get((each.pid, part.gpu_id), 0) + each.memory_bytes
    for name in os.listdir(top):  # noqa: PTH208
        if name.isdecimal() and not any(pid == int(name) for pid, _ in sums):
            shutil.rmtree(top / name, ignore_errors=True)
    for (pid, gpu_id), size in sums.items():
        _put(top / str(pid) / f"vram_{gpu_id}", str(size))


def regions(books: Books) -> dict[str, int]:
    """What the kernel counts by cgroup, each with its size."""
    found: dict[str, int] = {}
    for card in books.cards if books.controller else ():
        model = MODELS[card.model]
        if model.driver == "i915" or not (card.plugged and card.loaded and card.counted) or card.virtual:
            continue
        names = ["vram"] if model.driver == "amdgpu" else [f"vram{number}" for number in range(model.regions)]
        for name in names:
            found[f"drm/{card.address}/{name}"] = card.memory_bytes // len(names)
    return found


def used(books: Books, cgroup: str, region: str) -> int:
    """Of one region, by a cgroup and all below it."""
    address = region.split("/")[1]
    count = sum(1 for name in regions(books) if name.split("/")[1] == address)
    below = cgroup.rstrip("/") + "/"
    return sum(
        each.memory_bytes // max(1, count)
        for each in books.held
        if each.address == address and f"{each.cgroup.rstrip('/')}/".startswith(below)
    )


def show_groups(root: Path, books: Books) -> None:
    """Cgroups, with the files of the controller where it is switched on."""
    top = root / CGROUPS
    known = regions(books)
    _put(top / "cgroup.controllers", "cpu memory pids" + (" dmem" if books.controller else ""))
    _put(top / "cgroup.subtree_control", _control(books, "/"))
    for name in ("dmem.capacity", "dmem.current"):
        if not books.controller:
            (top / name).unlink(missing_ok=True)
    if books.controller:
        _put(top / "dmem.capacity", "\n".join(f"{region} {size}" for region, size in known.items()))
        _put(top / "dmem.current", "\n".join(f"{region} {used(books, '/', region)}" for region in known))
    for group in books.groups:
        folder = top / group.lstrip("/")
        above = group.rpartition("/")[0] or "/"
        has = books.controller and above in books.enabled
        _put(folder / "cgroup.controllers", "cpu memory pids" + (" dmem" if has else ""))
        _put(folder / "cgroup.subtree_control", _control(books, group))
        for name in ("dmem.max", "dmem.current"):
            if not has:
                (folder / name).unlink(missing_ok=True)
        if has:
            limits = books.limits.get(group, {})
            _put(folder / "dmem.max", "\n".join(f"{region} {limits.get(region, 'max')}" for region in known))
            _put(folder / "dmem.current", "\n".join(f"{region} {used(books, group, region)}" for region in known))


def _control(books: Books, group: str) -> str:
    return "dmem" if group in books.enabled else ""


def _put(path: Path, text: str) -> None:
    """As a whole: readers see the old text or the new one."""
    whole = text + "\n" if text else ""
    try:
        if path.read_text(encoding="utf-8") == whole:
            return
    except OSError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, whole.encode(), mode=0o644, durable=False)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
