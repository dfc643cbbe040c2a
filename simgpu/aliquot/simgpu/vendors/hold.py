"""A job in miniature on a simulated card of any vendor but NVIDIA: holds memory of it, and may ask for more and more.

    python -m aliquot.simgpu.vendors.hold /tmp/machine --bytes 4Gi --grow 1Gi --step-seconds 0.5

It takes the card that it is shown, by the variables that the vendor's own programs go by. Exit codes are those of
`aliquot.simgpu.burn`: 0 done, 3 memory was denied, 4 it is shown no card.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from aliquot.common.quantity import human_bytes, parse_bytes
from aliquot.simgpu.burn import EXIT_NO_DEVICE, EXIT_OUT_OF_MEMORY
from aliquot.simgpu.drm.machine import Machine, OutOfMemory
from aliquot.simgpu.drm.models import MODELS
from aliquot.simgpu.errors import SimulationError
from aliquot.simgpu.vendors.dcmi import NO_VDEV, SimAscend, SimChip

MIB = 1 << 20
Take = Callable[[int], None]
"""Hold so many bytes in all."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the job; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m aliquot.simgpu.vendors.hold", description="Hold device memory.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bytes", type=parse_bytes, required=True)
    parser.add_argument("--grow", type=parse_bytes, default=0)
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    for name in ("--device", "--percent"):
        parser.add_argument(name, type=int, help="taken for the sake of `aliquot.simgpu.burn`'s callers")
    options = parser.parse_args(arguments)
    take = _shown(options.directory)
    if take is None:
        _say("no card is shown to it")
        return EXIT_NO_DEVICE
    held, deadline = options.bytes, time.monotonic() + options.seconds
    try:
        take(held)
        while time.monotonic() < deadline:
            _say(f"holds {human_bytes(held)} ({held} bytes)")
            time.sleep(options.step_seconds)
            if options.grow:
                take(held + options.grow)
                held += options.grow
    except (OutOfMemory, SimulationError) as error:
        _say(f"refused {human_bytes(options.grow or options.bytes)} while holding {human_bytes(held)}: {error}")
        return EXIT_OUT_OF_MEMORY
    return 0


def _shown(directory: Path) -> Take | None:
    """Of the first card that the variables show."""
    ascend = os.environ.get("ASCEND_VISIBLE_DEVICES") or os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if ascend:
        return _of_ascend(SimAscend(directory / "ascend"), int(ascend.split(",")[0]))
    machine = Machine(directory / "drm")
    by_identity = os.environ.get("ROCR_VISIBLE_DEVICES", "").split(",")[0].removeprefix("GPU-")
    by_place = os.environ.get("ZE_AFFINITY_MASK", "").split(",")[0]
    cards = list(enumerate(machine.books().cards)) if by_identity or by_place else []
    intel = [index for index, card in cards if MODELS[card.model].vendor_id == "0x8086"]
    found = [index for index, card in cards if by_identity and f"{card.unique_id:016x}" == by_identity]
    if not found and by_place:
        found = intel[int(by_place) :]
    return _of_drm(machine, found[0]) if found else None


def _of_drm(machine: Machine, index: int) -> Take:
    client = machine.take(os.getpid(), index, 0)
    held = 0

    def take(wanted: int) -> None:
        nonlocal held
        machine.more(client, wanted - held)
        held = wanted

    return take


def _of_ascend(machine: SimAscend, number: int) -> Take:
    words = [line.split() for line in machine.lines()]
    virtual = os.environ.get("ASCEND_RUNTIME_OPTIONS") == "VIRTUAL"
    for each in words:
        if virtual and each[0] == "vdev" and int(each[3]) == number:
            return lambda wanted: machine.allocate(int(each[1]), int(each[2]), wanted // MIB, vdev=number)
    chips = [SimChip.read(" ".join(each)) for each in words if each[0] == "chip"]
    chip = next(each for each in chips if each.logic == number)
    return lambda wanted: machine.allocate(chip.card, chip.device, wanted // MIB, vdev=NO_VDEV)


def _say(text: str) -> None:
    sys.stdout.write(f"hold[{os.getpid()}] {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
