"""One simulated machine of each kind of devices, for the tests that every backend must pass.

A new kind is a class here and a row in `BENCHES`. A method that a kind can't have raises `Unheard`, with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aliquot import simgpu
from aliquot.simgpu import drm
from aliquot.simgpu.vendors.dcmi import SimAscend, SimChip
from aliquot.simgpu.vendors.hlml import SimGaudi, SimGaudis
from tests.agent.harness import ROOT

GIB = 1 << 30


class Unheard(Exception):
    """This kind of devices knows no such thing."""


class Failed(Exception):
    """A backend answered with an error: its name and what it said."""


class Bench(Protocol):
    """A machine of two cards or more, of one kind."""

    spec: str
    """Of the agent's setting `devices`."""
    environment: Mapping[str, str]
    """What the agent's process must have set."""

    def hold(self, card: int, size: int, pid: int) -> None:
        """A process has so much of a card's memory now, in all."""

    def release(self, card: int, pid: int) -> None:
        """A process lets go of a card."""

    def lose(self, card: int) -> None:
        """It falls off the bus."""

    def give_back(self, card: int) -> None:
        """It is back."""

    def renumber(self) -> None:
        """The same cards come up under other numbers, as after a restart of the machine."""

    def cut(self, card: int) -> None:
        """A card is cut into parts by somebody, under a running agent."""

    def hide(self, card: int, pid: int) -> None:
        """What a process holds of a card can't be known any more."""

    def breakage(self, folder: Path) -> Mapping[str, str]:
        """A library, or what stands for it, that is broken: an environment that has it."""

    def variables(self) -> set[str]:
        """By which programs are shown devices of this kind."""


class Nvidia:
    """NVML, by its stand-in."""

    spec = "nvml"

    def __init__(self, folder: Path) -> None:
        self._scenario = simgpu.create(folder / "gpus", ["A100-40", "A100-80"], host=str(folder))
        self.environment: Mapping[str, str] = simgpu.environment(folder / "gpus")

    def hold(self, card: int, size: int, pid: int) -> None:
        if not self._scenario.set_foreign_memory(card, pid, size):
            self._scenario.add_foreign(card, size, pid=pid, name="job")

    def release(self, card: int, pid: int) -> None:
        assert self._scenario.remove_foreign(card, pid)

    def lose(self, card: int) -> None:
        self._scenario.lose(card)

    def give_back(self, card: int) -> None:
        self._scenario.restore(card)

    def renumber(self) -> None:
        self._scenario.renumber(0, 1)

    def cut(self, card: int) -> None:
        self._scenario.set_mig_mode(card, enabled=True)

    def hide(self, card: int, pid: int) -> None:
        assert self._scenario.set_memory_unknown(card, pid, unknown=True)

    def breakage(self, folder: Path) -> Mapping[str, str]:
        (folder / "libnvidia-ml.so.1").write_text("no library")
        return {"LD_LIBRARY_PATH": f"{folder}:{self.environment['LD_LIBRARY_PATH']}"}

    def variables(self) -> set[str]:
        return {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}


class _Drm:
    """Files of the kernel's, obeyed by a model."""

    models: tuple[str, ...]

    def __init__(self, folder: Path) -> None:
        self.machine = drm.create(folder / "machine", self.models, host=str(folder))
        self._folder = folder / "machine"
        self.spec = f"drm:{folder / 'machine'}"
        self.environment: Mapping[str, str] = {}

    def hold(self, card: int, size: int, pid: int) -> None:
        self.release(card, pid)
        self.machine.take(pid, card, size)

    def release(self, card: int, pid: int) -> None:
        self.machine.end(pid)

    def lose(self, card: int) -> None:
        self.machine.unplug(card)

    def give_back(self, card: int) -> None:
        self.machine.plug(card)

    def renumber(self) -> None:
        for card in range(len(self.models)):
            self.machine.load(card)

    def hide(self, card: int, pid: int) -> None:
        with self.machine.changed() as books:
            for held in books.held:
                held.untold = held.untold or held.pid == pid

    def breakage(self, folder: Path) -> Mapping[str, str]:
        (self._folder / "sys/class/drm").rename(folder / "drm")
        return {}


class Amd(_Drm):
    """amdgpu."""

    models = ("MI300X", "MI210")

    def cut(self, card: int) -> None:
        self.machine.cut(0, "CPX", "NPS4")

    def variables(self) -> set[str]:
        return {"ROCR_VISIBLE_DEVICES"}


class Intel(_Drm):
    """Xe."""

    models = ("B60", "B580")

    def cut(self, card: int) -> None:
        self.machine.set_virtual(0, 2)

    def variables(self) -> set[str]:
        return {"ZE_AFFINITY_MASK", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"}


class Ascend:
    """DCMI, by its stand-in."""

    spec = "ascend"

    def __init__(self, folder: Path) -> None:
        self._machine = SimAscend.create(folder / "ascend", SimChip(0, name="910B3"), SimChip(1, name="910B4"))
        self.environment: Mapping[str, str] = self._machine.environment()

    def hold(self, card: int, size: int, pid: int) -> None:
        self._machine.allocate(card, 0, size >> 20, pid=pid)

    def release(self, card: int, pid: int) -> None:
        self._machine.allocate(card, 0, 0, pid=pid)

    def lose(self, card: int) -> None:
        self._machine.change(card, state="lost")

    def give_back(self, card: int) -> None:
        self._machine.change(card, state="ok")

    def renumber(self) -> None:
        self._machine.change(0, logic=1)
        self._machine.change(1, logic=0)

    def cut(self, card: int) -> None:
        self._machine.cut(card, 0, "vir05_1c_16g", 100)
        self._machine.cut(card, 0, "vir10_3c_32g", 102)

    def hide(self, card: int, pid: int) -> None:
        raise Unheard("DCMI tells the memory of every process that it lists")

    def breakage(self, folder: Path) -> Mapping[str, str]:
        (folder / "libdcmi.so").write_text("no library")
        return {"ALIQUOT_DCMI_LIBRARY": str(folder / "libdcmi.so")}

    def variables(self) -> set[str]:
        return {"ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"}


def _opens(root: Path, pid: int, path: str) -> None:
    """A process of a recorded machine has a file open."""
    folder = root / "proc" / str(pid) / "fd"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "3").is_symlink():
        (folder / "3").symlink_to(path)


class Gaudi:
    """HLML, by its stand-in, and files of the kernel's. One program at a time has a card."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "machine"
        (self._root / "proc").mkdir(parents=True)
        self._cards = SimGaudi(0), SimGaudi(1)
        self._machine = SimGaudis.create(folder / "gaudi", self._root / "sys", *self._cards)
        self.spec = f"gaudi:{self._root}"
        self.environment: Mapping[str, str] = self._machine.environment()
        self._holder: dict[int, int] = {}

    def hold(self, card: int, size: int, pid: int) -> None:
        if self._holder.setdefault(card, pid) != pid:
            raise Unheard("the driver lets one process have a card open")
        self._machine.allocate(card, pid, size)
        _opens(self._root, pid, f"/dev/accel/accel{card}")

    def release(self, card: int, pid: int) -> None:
        del self._holder[card]
        self._machine.allocate(card, pid, 0)
        (self._root / "proc" / str(pid) / "fd/3").unlink()

    def lose(self, card: int) -> None:
        self._machine.change(self._cards[card], state="lost")

    def give_back(self, card: int) -> None:
        self._machine.change(self._cards[card], state="ok")

    def renumber(self) -> None:
        raise Unheard("HLML names cards by their UUIDs, which its stand-in derives from their place")

    def cut(self, card: int) -> None:
        raise Unheard("a card has no parts")

    def hide(self, card: int, pid: int) -> None:
        raise Unheard("all that is in use is its only process's")

    def breakage(self, folder: Path) -> Mapping[str, str]:
        (folder / "libhlml.so").write_text("no library")
        return {"ALIQUOT_HLML_LIBRARY": str(folder / "libhlml.so")}

    def variables(self) -> set[str]:
        return {"HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"}


class Tpu:
    """Files of the kernel's. Nobody tells the memory that is in use."""

    environment: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self._root = folder / "machine"
        (self._root / "proc").mkdir(parents=True)
        self.spec = f"tpu:{self._root}"
        for place in range(2):
            device = self._device(place)
            device.mkdir(parents=True)
            for name, word in (("vendor", "0x1ae0"), ("device", "0x006f"), ("subsystem_device", "0x00b0")):
                (device / name).write_text(f"{word}\n")
            (self._root / f"groups/{place}").mkdir(parents=True)
            (device / "iommu_group").symlink_to(self._root / f"groups/{place}")

    def _device(self, card: int) -> Path:
        return self._root / f"sys/bus/pci/devices/0000:00:0{4 + card}.0"

    def hold(self, card: int, size: int, pid: int) -> None:
        _opens(self._root, pid, f"/dev/vfio/{card}")
        raise Unheard("only the program itself could tell how much of a chip's memory it uses")

    def release(self, card: int, pid: int) -> None:
        (self._root / "proc" / str(pid) / "fd/3").unlink()

    def lose(self, card: int) -> None:
        self._device(card).rename(self._root / f"lost{card}")

    def give_back(self, card: int) -> None:
        (self._root / f"lost{card}").rename(self._device(card))

    def renumber(self) -> None:
        raise Unheard("a chip is known by its place on the bus")

    def cut(self, card: int) -> None:
        raise Unheard("a chip has no parts")

    def hide(self, card: int, pid: int) -> None:
        raise Unheard("it is hidden already")

    def breakage(self, folder: Path) -> Mapping[str, str]:
        (self._root / "sys").rename(folder / "sys")
        return {}

    def variables(self) -> set[str]:
        return {"TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"}


BENCHES: dict[str, Callable[[Path], Bench]] = {
    "nvidia": Nvidia,
    "amd": Amd,
    "intel": Intel,
    "ascend": Ascend,
    "gaudi": Gaudi,
    "tpu": Tpu,
}


class Asked:
    """A backend in a process of its own."""

    def __init__(self, spec: str, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/devices/asker.py"), spec],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, call: str, uuid: str = "", **more: object) -> Any:
        """Its answer. Raises `Failed` where it says that it can't."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"call": call, **({"uuid": uuid} if uuid else {}), **more}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the backend's process ended at {call}"
        said = json.loads(line)
        if "error" in said:
            raise Failed(said["error"], said["message"])
        return said["answer"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
