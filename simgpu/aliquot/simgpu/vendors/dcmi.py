"""Simulated Ascend cards, behind `libdcmi.so`: chips, their virtual NPUs, and programs that hold memory on them.

The hardware's own rule is kept here: a program on a virtual NPU gets no more than that has, and two of them together on
one chip no more than the chip has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from aliquot.simgpu.errors import SimulationError
from aliquot.simgpu.vendors.scene import Scene, library

VARIABLE = "ALIQUOT_SIMDCMI"
LIBRARY = "libdcmi.so"
NO_VDEV = -1
HCCS, BY_SWITCH, BY_BUS = 3, 7, 2
"""Ways from chip to chip, as DCMI numbers them."""

TEMPLATES: Mapping[str, tuple[tuple[str, int, int], ...]] = {
    "910A": (("vir02", 2, 2184), ("vir04", 4, 4369), ("vir08", 8, 8738), ("vir16", 16, 17476)),
    "910B2": (("vir03_1c_8g", 3, 8192), ("vir06_1c_16g", 6, 16384), ("vir12_3c_32g", 12, 32768)),
    "910B3": (("vir05_1c_16g", 5, 16384), ("vir10_3c_32g", 10, 32768)),
    "910B4": (("vir05_1c_8g", 5, 8192), ("vir10_3c_16g", 10, 16384)),
}
"""By chip: what its driver makes virtual NPUs of, as (name, AI cores, MB)."""
_CHIPS = {"910A": (30, 32768), "910B2": (24, 65536), "910B3": (20, 65536), "910B4": (20, 32768)}


class SimChip(msgspec.Struct, frozen=True):
    """One chip."""

    card: int
    device: int = 0
    name: str = "910B3"
    logic: int = 0
    busy: int = 0
    heat: int = 41
    deciwatt: int = 953
    health: int = 0
    double_bit: int = 0
    system_mb: int = 3400
    """What the driver and its operating system hold."""
    state: str = "ok"
    die: tuple[int, ...] = ()

    @property
    def cores(self) -> int:
        """AI cores."""
        return _CHIPS[self.name][0]

    @property
    def memory_mb(self) -> int:
        """HBM."""
        return _CHIPS[self.name][1]

    def line(self) -> str:
        """As the stand-in reads it."""
        die = self.die or tuple(0xA5CE0000 + self.card * 16 + self.device + number for number in range(5))
        words = [self.card, self.device, self.logic, self.logic, self.name, self.cores, self.memory_mb, self.system_mb]
        words += [self.busy, self.heat, self.deciwatt, self.health, self.double_bit]
        identity = "".join(f"{word:08x}" for word in die)
        pci = f"0000:{0xC1 + self.card:02x}:{self.device:02x}.0"
        return f"chip {' '.join(map(str, words))} {identity} {pci} {self.state}"

    @classmethod
    def read(cls, line: str) -> SimChip:
        """The chip of such a line."""
        words = line.split()
        card, device, logic, _, name = int(words[1]), int(words[2]), int(words[3]), words[4], words[5]
        system, busy, heat, deciwatt, health, double = (int(words[at]) for at in (8, 9, 10, 11, 12, 13))
        die = tuple(int(words[14][at : at + 8], 16) for at in range(0, 40, 8))
        return cls(card, device, name, logic, busy, heat, deciwatt, health, double, system, words[16], die)


class SimAscend(Scene):
    """A machine with Ascend cards."""

    @classmethod
    def create(cls, path: Path, *chips: SimChip) -> SimAscend:
        """A new machine. Chips are numbered in the order given."""
        made = cls(path)
        with made.changing() as lines:
            lines[:] = ["driver 24.1.rc3"]
            lines += [replace(chip, logic=number).line() for number, chip in enumerate(chips)]
            for name in sorted({chip.name for chip in chips}):
                lines += [f"template {name} {template} {cores} {mb}" for template, cores, mb in TEMPLATES[name]]
        return made

    def environment(self) -> dict[str, str]:
        """With these variables a program finds this machine, by the library that `library` names."""
        return {VARIABLE: str(self.path.absolute()), "ALIQUOT_DCMI_LIBRARY": str(library(LIBRARY))}

    def change(self, card: int, device: int = 0, **values: object) -> None:
        """Change a chip: `state="lost"`, `health=3`, `busy=80` and so on."""
        with self.changing() as lines:
            for number, line in enumerate(lines):
                if line.startswith(f"chip {card} {device} "):
                    lines[number] = replace(SimChip.read(line), **values).line()

    def link(self, card: int, other: int, kind: int = HCCS) -> None:
        """Two cards' chips reach one another without the bus (or by what `kind` says, of DCMI's numbers)."""
        with self.changing() as lines:
            lines[:] = [line for line in lines if not line.startswith(f"link {card} 0 {other} 0 ")]
            lines.append(f"link {card} 0 {other} 0 {kind}")

    def cut(self, card: int, device: int, template: str, vdev: int) -> None:
        """Make a virtual NPU, as an administrator does with `npu-smi`."""
        with self.changing() as lines:
            name = next(SimChip.read(line).name for line in lines if line.startswith(f"chip {card} {device} "))
            cores, mb = next((cores, mb) for each, cores, mb in TEMPLATES[name] if each == template)
            lines.append(f"vdev {card} {device} {vdev} {template} {cores} {mb}")

    def allocate(self, card: int, device: int, mb: int, *, vdev: int = NO_VDEV, pid: int | None = None) -> None:
        """Let a process (this one) hold so much memory in all. Raises `SimulationError`: it is denied."""
        pid = os.getpid() if pid is None else pid
        with self.changing() as lines:
            chip = next(SimChip.read(line) for line in lines if line.startswith(f"chip {card} {device} "))
            others = [each for each in _processes(lines, card, device) if each[0] != pid and _alive(each[0])]
            bound = chip.memory_mb - chip.system_mb - sum(held for _, held, _ in others)
            if vdev != NO_VDEV:
                has = next(
                    (int(words[6]) for words in map(str.split, lines) if words[:4] == _vdev(card, device, vdev)), 0
                )
                bound = min(bound, has - sum(held for _, held, where in others if where == vdev))
            if mb > bound:
                raise SimulationError(f"{mb} MB were asked for; {max(bound, 0)} MB can be had")
            lines[:] = [line for line in lines if not line.startswith(f"proc {card} {device} {pid} ")]
            if mb:
                lines.append(f"proc {card} {device} {pid} {mb} {vdev}")


def _vdev(card: int, device: int, vdev: int) -> list[str]:
    return ["vdev", str(card), str(device), str(vdev)]


def _processes(lines: list[str], card: int, device: int) -> list[tuple[int, int, int]]:
    """(pid, MB, virtual NPU)."""
    words = [line.split() for line in lines if line.startswith(f"proc {card} {device} ")]
    return [(int(each[3]), int(each[4]), int(each[5])) for each in words]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
