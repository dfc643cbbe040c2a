"""What this node is: one line for each thing that a tier needs, good or not, and what to do about it."""

from __future__ import annotations

import enum
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import msgspec

from aliquot.agent.core.partitioning import Card
from aliquot.agent.core.samples import DeviceInfo, DriverInfo
from aliquot.agent.devices.base import DeviceBackend, DeviceError, Discovery
from aliquot.agent.enforce.by_vendor import vendor_of
from aliquot.agent.enforce.mps import FOLDER, look_at
from aliquot.agent.enforce.mps_control import PROGRAM, installed
from aliquot.agent.enforce.preload import built_library
from aliquot.agent.enforce.prerequisites import CUDA_LIBRARY, CudaDriver, why_unmeasured
from aliquot.agent.processes.cgroups import CgroupTree, ContainmentError
from aliquot.agent.processes.signals import PidFds

NODE_NAME = "doctor"
KERNEL_LOG_PATH = "/dev/kmsg"


class Mark(enum.StrEnum):
    """How something stands."""

    GOOD = "ok"
    NOTE = "note"
    """Not there, and only some tiers need it."""
    BAD = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    subject: str
    mark: Mark
    text: str


def look(backend: DeviceBackend, why_no_driver: str, found: Discovery, tiers: Path) -> Iterator[Finding]:
    """Everything that doesn't need trying. `tiers`: where the agent of this node keeps its tiers' files."""
    yield _driver(backend, why_no_driver)
    for name, problem in found.kinds.items():
        yield Finding(f"devices {name}", Mark.BAD if problem else Mark.GOOD, problem or "answer")
    for text in found.problems:
        yield Finding("GPU", Mark.BAD, f"can't be read, so it is not there for leases: {text}")
    for text in found.unleasable:
        yield Finding("GPU", Mark.NOTE, f"can't be leased: {text}")
    for device in found.devices:
        yield _device(backend, device)
    own = [device for device in found.devices if vendor_of(device) == "nvidia"]
    if own:
        cuda = CudaDriver()
        cuda.look()
        missing = cuda.why_not(own[0])
        yield Finding("CUDA", Mark.NOTE if missing else Mark.GOOD, missing or f"{CUDA_LIBRARY} can be loaded")
    for card in found.cards:
        yield _card(card)
    for problem in found.card_problems:
        yield Finding("MIG", Mark.NOTE, f"{problem}: such a card can't be cut anew")
    yield Finding("kernel", Mark.GOOD, platform.release())
    yield _kernel_log()
    if not why_no_driver:
        yield _driver_events(backend)
    yield _user()
    yield _cgroups()
    missing = PidFds().available()
    yield Finding("signals", Mark.BAD if missing else Mark.GOOD, missing or "processes can be signalled by pidfd")
    yield _pid_namespace()
    yield _file("preload library", built_library(), "build it with `make native`")
    if not installed():
        yield Finding("MPS", Mark.NOTE, f"{PROGRAM} is not installed: the mps tier can't be had")
        return
    yield Finding("MPS", Mark.GOOD, f"{PROGRAM} is installed")
    for uuid, text in look_at(tiers / FOLDER):
        yield Finding(f"MPS {uuid}", Mark.NOTE, text)


def _driver(backend: DeviceBackend, why_not: str) -> Finding:
    if why_not:
        return Finding("driver", Mark.BAD, why_not)
    found: DriverInfo = backend.open()
    cuda = f", CUDA {found.cuda_version[0]}.{found.cuda_version[1]}" if found.cuda_version else ""
    return Finding("driver", Mark.GOOD, f"{found.driver_version}{cuda}")


def _device(backend: DeviceBackend, device: DeviceInfo) -> Finding:
    subject = f"GPU {device.index}"
    parts = [f"{device.product_name}, {device.leasable_bytes >> 20} MiB leasable"]
    if why_not := device.shut or device.whole_only:
        return Finding(subject, Mark.NOTE, f"{parts[0]}; {why_not}")
    if device.mig_profile:
        parts.append(f"MIG {device.mig_profile}")
    try:
        untold = why_unmeasured(backend.processes(device.uuid))
    except DeviceError as error:
        return Finding(subject, Mark.BAD, f"{parts[0]}; its processes can't be seen: {error.message}")
    if untold:
        return Finding(subject, Mark.NOTE, f"{parts[0]}; {untold}: the watchdog tier can't be had")
    if missing := backend.unusable(device):
        return Finding(subject, Mark.NOTE, f"{parts[0]}; no program can use it: {missing}")
    return Finding(subject, Mark.GOOD, ", ".join(parts))


def _card(card: Card) -> Finding:
    parts = ", ".join(f"{part.profile} from {part.start}" for part, _ in card.parts) or "no parts yet"
    ways = ", ".join(sorted(profile.name for profile in card.profiles))
    return Finding("MIG", Mark.GOOD, f"{card.uuid}: {parts}; with `mig.repartition` it may be cut anew into {ways}")


def _kernel_log() -> Finding:
    path = Path(KERNEL_LOG_PATH)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        text = f"{path} can't be read ({error.strerror}): XIDs that NVML does not tell are not heard"
        return Finding("kernel-log", Mark.NOTE, f"{text}; run the agent as root, or give it CAP_SYSLOG and the device")
    return Finding("kernel-log", Mark.GOOD, f"{path} can be read")


def _driver_events(backend: DeviceBackend) -> Finding:
    try:
        backend.wait_events(0)
        deaf = backend.deaf()
    except DeviceError as error:
        deaf = error.message
    return Finding("driver-events", Mark.NOTE if deaf else Mark.GOOD, deaf or "the driver tells its events")


def _user() -> Finding:
    if os.geteuid() == 0:
        return Finding("user", Mark.GOOD, "root")
    text = f"uid {os.geteuid()}: limits of the driver can't be set, and other users' processes can't be signalled"
    return Finding("user", Mark.NOTE, text)


def _cgroups() -> Finding:
    try:
        tree = CgroupTree.open(NODE_NAME)
    except ContainmentError as error:
        return Finding("cgroups", Mark.NOTE, f"{error.explain()}: leases are followed by session and ancestry only")
    tree.close()
    return Finding("cgroups", Mark.GOOD, f"leases get their own below {tree.base}")


def _pid_namespace() -> Finding:
    first = 0xEFFFFFFC
    inside = str(Path("/proc/self/ns/pid").readlink()) != f"pid:[{first}]"
    text = "this is a pid namespace of its own, and drivers count by the machine's pids: run the agent with hostPID"
    return Finding("pids", Mark.BAD if inside else Mark.GOOD, text if inside else "those of the machine")


def _file(subject: str, path: Path, hint: str) -> Finding:
    return Finding(subject, *((Mark.GOOD, str(path)) if path.is_file() else (Mark.NOTE, f"{path} is missing: {hint}")))
