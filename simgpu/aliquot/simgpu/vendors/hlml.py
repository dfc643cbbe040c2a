"""Simulated Gaudi cards, behind `libhlml.so` and a tree of sysfs: one program on a card at a time."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from aliquot.simgpu.vendors.scene import Scene, library

VARIABLE = "ALIQUOT_SIMHLML"
LIBRARY = "libhlml.so"
_MEMORY = {"HL-205": 32 << 30, "HL-225": 96 << 30, "HL-325L": 128 << 30}


class SimGaudi(msgspec.Struct, frozen=True):
    """One card."""

    number: int
    name: str = "HL-225"
    system_bytes: int = 672 << 20
    busy: int = 0
    heat: int = 36
    milliwatt: int = 98_000
    uncorrected: int = 0
    state: str = "ok"

    @property
    def uuid(self) -> str:
        """As its firmware says."""
        return f"01P0-HL2080A0-15-TNPS34-20-07-{self.number:02d}"

    @property
    def pci(self) -> str:
        """Where it is."""
        return f"0000:{0x33 + self.number:02x}:00.0"

    def line(self) -> str:
        """As the stand-in reads it."""
        words = [self.number, self.name, self.uuid, self.pci, _MEMORY[self.name], self.system_bytes]
        words += [self.busy, self.heat, self.milliwatt, self.uncorrected, self.state]
        return f"gaudi {' '.join(map(str, words))}"


class SimGaudis(Scene):
    """A machine with Gaudi cards."""

    @classmethod
    def create(cls, path: Path, sys_root: Path, *cards: SimGaudi) -> SimGaudis:
        """A new machine, with what the kernel shows of it below `sys_root`."""
        made = cls(path)
        with made.changing() as lines:
            lines[:] = [card.line() for card in cards]
        for card in cards:
            (sys_root / "bus/pci/devices" / card.pci / "accel" / f"accel{card.number}").mkdir(parents=True)
        return made

    def environment(self) -> dict[str, str]:
        """With these variables a program finds this machine."""
        return {VARIABLE: str(self.path.absolute()), "ALIQUOT_HLML_LIBRARY": str(library(LIBRARY))}

    def change(self, card: SimGaudi, **values: object) -> None:
        """Change a card: `state="lost"` and so on."""
        with self.changing() as lines:
            for number, line in enumerate(lines):
                if line.startswith(f"gaudi {card.number} "):
                    lines[number] = replace(card, **values).line()

    def allocate(self, number: int, pid: int, memory_bytes: int) -> None:
        """Let a process hold so much."""
        with self.changing() as lines:
            lines[:] = [line for line in lines if not line.startswith(f"proc {number} {pid} ")]
            lines.append(f"proc {number} {pid} {memory_bytes}")
