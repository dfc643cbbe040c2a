"""The kinds of devices that an agent may read, by the words of its setting `devices`.

    nvml | drm | … | auto | several of them, as "nvml,drm"

`auto` takes each kind that shows on this machine, and `nvml` where none does: its driver may come later. A new kind is
a row in `KINDS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from aliquot.agent.devices.base import DeviceBackend, DeviceError
from aliquot.common.errors import ConfigError

AUTO = "auto"


class Row(msgspec.Struct, frozen=True):
    """A kind of devices."""

    make: Callable[[str], DeviceBackend]
    """From what stands behind the colon. Raises `ConfigError`, `BackendUnavailable`, and what its library raises."""
    shows: Callable[[], bool]
    """Whether this machine seems to have devices of it. Loads nothing."""
    loads_library: bool
    """Whether it loads a vendor's library, which may take the process along: beside others it is tried in a child."""
    takes: str = ""
    """What may stand behind the colon, for people; empty: nothing."""


def make_backend(text: str) -> DeviceBackend:
    """The device backend that the setting names. Raises `ConfigError` and `BackendUnavailable`."""
    specs = [word.strip() for word in text.split(",") if word.strip()]
    if specs == [AUTO]:
        specs = [name for name, row in KINDS.items() if row.shows()] or ["nvml"]
    for spec in specs:
        _row_of(spec)
    names = [spec.partition(":")[0] for spec in specs]
    if not specs or len(set(names)) < len(names):
        raise ConfigError(f"devices {text!r} names no kind, or one twice", hint=_choices())
    if len(specs) == 1:
        return _made(specs[0])
    from aliquot.agent.devices.several import Kind, SeveralKinds, try_in_child  # noqa: PLC0415 - most nodes have one kind

    def kind(spec: str) -> Kind:
        first = partial(try_in_child, spec) if _row_of(spec).loads_library else str
        return Kind(spec.partition(":")[0], partial(_made, spec), first)

    return SeveralKinds([kind(spec) for spec in specs])


def try_kind(spec: str) -> None:
    """Open a kind and look once; ends the process with 1 and a line where that fails."""
    try:
        backend = _made(spec)
        backend.open()
        backend.discover()
        backend.close()
    except Exception as error:  # noqa: BLE001 - a vendor's library may raise anything
        told = error.message if isinstance(error, DeviceError) else f"{type(error).__name__}: {error}"
        sys.stdout.write(" ".join(told.split()) + "\n")
        sys.exit(1)


def _made(spec: str) -> DeviceBackend:
    return _row_of(spec).make(spec.partition(":")[2])


def _row_of(spec: str) -> Row:
    name, colon, rest = spec.partition(":")
    row = KINDS.get(name)
    if row is None or (colon and not row.takes) or (colon and not rest):
        raise ConfigError(f"devices {spec!r} is unknown", hint=_choices())
    return row


def _choices() -> str:
    return f"{', '.join(KINDS)}, several of them with commas between, or {AUTO}"


# Only what is named is imported: an agent needs no other vendor's driver.


def _nvml(_: str) -> DeviceBackend:
    from aliquot.agent.devices.nvml import NvmlBackend  # noqa: PLC0415

    return NvmlBackend()


def _nvml_shows() -> bool:
    return Path("/proc/driver/nvidia").exists() or bool(os.environ.get("ALIQUOT_SIMGPU"))


def _drm(rest: str) -> DeviceBackend:
    from aliquot.agent.devices.drm.backend import DrmBackend  # noqa: PLC0415
    from aliquot.agent.devices.drm.libraries import Libraries  # noqa: PLC0415

    if not rest:
        return DrmBackend(libraries=Libraries())
    from importlib.metadata import entry_points  # noqa: PLC0415 - only for simulated machines

    for entry in entry_points(group="aliquot.machines", name="simulated"):
        tree = entry.load()(Path(rest))
        return DrmBackend(tree, libraries=Libraries(tree.libraries))
    raise ConfigError("no simulated machine is installed", hint="install aliquot with its simulated GPUs")


def _drm_shows() -> bool:
    if os.environ.get("ALIQUOT_SIMGPU"):
        return False
    drivers = (Path("/sys/module") / name for name in ("amdgpu", "xe"))
    return any((driver / "drivers").exists() for driver in drivers) and bool(list(Path("/sys/class/drm").glob("card*")))


def _ascend(rest: str) -> DeviceBackend:
    from aliquot.agent.devices.ascend import AscendBackend  # noqa: PLC0415

    return AscendBackend(rest)


def _ascend_shows() -> bool:
    return Path("/dev/davinci_manager").exists() or bool(os.environ.get("ALIQUOT_DCMI_LIBRARY"))


def _gaudi(rest: str) -> DeviceBackend:
    from aliquot.agent.devices.gaudi import GaudiBackend  # noqa: PLC0415
    from aliquot.agent.devices.owners import Owners  # noqa: PLC0415

    root = Path(rest)
    if rest and root.is_dir():
        return GaudiBackend(sys_root=root / "sys", owners=Owners(root / "proc", fresh_s=0))
    return GaudiBackend(rest)


def _gaudi_shows() -> bool:
    return Path("/sys/module/habanalabs").exists() or bool(os.environ.get("ALIQUOT_HLML_LIBRARY"))


def _tpu(rest: str) -> DeviceBackend:
    from aliquot.agent.devices.owners import Owners  # noqa: PLC0415
    from aliquot.agent.devices.tpu import TpuBackend  # noqa: PLC0415

    return TpuBackend(Path(rest, "sys"), Owners(Path(rest, "proc"), fresh_s=0)) if rest else TpuBackend()


def _tpu_shows() -> bool:
    if not any(_is_googles(device) for device in Path("/sys/bus/pci/devices").glob("*")):
        return False
    from aliquot.agent.devices.tpu import chips  # noqa: PLC0415 - which of them are chips: Google makes network cards, too

    try:
        return bool(chips())
    except DeviceError:
        return True  # opening it tells what can't be read


def _is_googles(device: Path) -> bool:
    try:
        return (device / "vendor").read_text().strip() == "0x1ae0"
    except OSError:  # unplugged meanwhile
        return False


KINDS: Mapping[str, Row] = {
    "nvml": Row(_nvml, _nvml_shows, loads_library=True),
    "drm": Row(_drm, _drm_shows, loads_library=False, takes="DIRECTORY of a simulated machine, or nothing"),
    "ascend": Row(_ascend, _ascend_shows, loads_library=True, takes="the path of libdcmi.so, or nothing"),
    "gaudi": Row(
        _gaudi,
        _gaudi_shows,
        loads_library=True,
        takes="the path of libhlml.so or the DIRECTORY of a recorded machine, or nothing",
    ),
    "tpu": Row(_tpu, _tpu_shows, loads_library=False, takes="DIRECTORY of a recorded machine, or nothing"),
}
