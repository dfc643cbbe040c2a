"""A job in miniature on a simulated card of any vendor but NVIDIA: holds memory of it, and may ask for more and more.

    python -m aliquot.simgpu.vendors.hold /tmp/machine --bytes 4Gi --grow 1Gi --step-seconds 0.5

It takes the card that it is shown, by the variables that the vendor's own programs go by. Otherwise it is as
`aliquot.simgpu.burn`, but for keeping the card busy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from aliquot.common.pieces import OUT_OF_MEMORY, Refused
from aliquot.simgpu.burn import EXIT_NO_DEVICE, parser, run, say
from aliquot.simgpu.drm.machine import Machine, OutOfMemory
from aliquot.simgpu.drm.models import MODELS
from aliquot.simgpu.errors import SimulationError
from aliquot.simgpu.vendors.dcmi import NO_VDEV, SimAscend, SimChip

MIB = 1 << 20
Take = Callable[[int], None]
"""Hold so many bytes more."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the job; its exit code."""
    wanted = parser("python -m aliquot.simgpu.vendors.hold")
    wanted.add_argument("directory", type=Path)
    options = wanted.parse_args(arguments)
    shown = _shown(options.directory)
    if shown is None:
        say("no card is shown to it")
        return EXIT_NO_DEVICE

    def take(more_bytes: int) -> None:
        try:
            shown(more_bytes)
        except (OutOfMemory, SimulationError) as error:
            raise Refused(OUT_OF_MEMORY) from error

    return run(options, take)


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
    return lambda more: machine.more(client, more)


def _of_ascend(machine: SimAscend, number: int) -> Take:
    words = [line.split() for line in machine.lines()]
    virtual = os.environ.get("ASCEND_RUNTIME_OPTIONS") == "VIRTUAL"
    own = [each for each in words if virtual and each[0] == "vdev" and int(each[3]) == number]
    chips = [SimChip.read(" ".join(each)) for each in words if each[0] == "chip"]
    card, device = (
        (int(own[0][1]), int(own[0][2]))
        if own
        else next((each.card, each.device) for each in chips if each.logic == number)
    )
    held = 0

    def take(more: int) -> None:
        nonlocal held
        machine.allocate(card, device, (held + more) // MIB, vdev=number if own else NO_VDEV)
        held += more

    return take


if __name__ == "__main__":
    sys.exit(main())
