"""Tier `driver` on amdgpu and xe: the kernel limits what a cgroup may hold of a card's memory (the controller `dmem`).

It holds everything in the lease's cgroup and below it, without any help of the process. What the kernel does over the
limit is to move the group's own buffers into the machine's memory first, which `dmem` does not count: the card is
protected, the machine's memory is not. It takes a limit below what is held without an error and keeps the old one, so
only what is read back counts. Programs are not told the limit: they see the card's whole memory. The tier is not
offered before `aliquot doctor` has shown on this machine that it holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aliquot.agent.core import dmem
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce import proofs
from aliquot.agent.enforce.base import Cgroups, EnforcementError, Limited
from aliquot.agent.enforce.by_vendor import vendor_of
from aliquot.agent.enforce.controllers import NO_DMEM, cgroups_of, make_ready, shares_of, switch_on
from aliquot.agent.enforce.nothing_set import NothingSet
from aliquot.common.kernel_files import KernelFiles
from aliquot.common.tiers import Tier

KERNEL = "/proc/sys/kernel/osrelease"
REMEMBERED_S = 2.0


class DmemEnforcer(NothingSet):
    """See `base.Enforcer`. One for all cards of a machine."""

    tier = Tier.DRIVER

    def __init__(self, tree: KernelFiles, cgroups: Cgroups, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._tree = tree
        self._cgroups = cgroups
        self._clock_s = clock_s
        self._known: dict[str, tuple[float, str]] = {}
        """By device: until when it holds, and why it can't be had."""

    def available(self, limited: Limited) -> str:
        """Empty where the kernel counts the card's memory by cgroup, and the doctor has seen that it holds."""
        uuid, now_s = limited.device.uuid, self._clock_s()
        known = self._known.get(uuid)
        if known is None or now_s >= known[0]:
            known = self._known[uuid] = (now_s + REMEMBERED_S, self._ask(limited.device))
        return known[1]

    def apply(self, limited: Limited) -> None:
        """Set the limit on the holder's leaf, which is made if it isn't there, and on cgroups that were attached to it.
        Raises `EnforcementError`.
        """
        region = self._region(limited.device)
        shares = shares_of(self._tree, limited)
        for cgroup, path in zip((limited.cgroup, *limited.attached), shares, strict=True):
            assert cgroup is not None
            problem = make_ready(self._tree, cgroup)
            if problem:
                raise EnforcementError(problem)
            self._set(path, region, shares[path])

    def read_back(self, limited: Limited) -> bool:
        """Whether the kernel says so, of each of its cgroups."""
        region = self._region(limited.device)
        for path, wanted in shares_of(self._tree, limited).items():
            try:
                limit = dmem.parse(self._tree.read(f"{path}/dmem.max")).get(region, dmem.NO_LIMIT)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise EnforcementError(f"{path}/dmem.max can't be read: {error.strerror}") from error
            if limit is None or not 0 <= wanted - limit < dmem.PAGE_BYTES:
                return False
        return True

    def clear(self, limited: Limited) -> None:
        """Lift the limit; without its cgroup, or while the card is away, there is none."""
        try:
            region = self._region(limited.device)
        except EnforcementError:
            return
        for path in cgroups_of(self._tree, limited):
            try:
                self._tree.write(f"{path}/dmem.max", dmem.order(region, dmem.NO_LIMIT))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise EnforcementError(f"{path}/dmem.max can't be written: {error.strerror}") from error

    def charged_bytes(self, limited: Limited) -> int:
        """What the kernel has booked on the holder's leaf. Raises `EnforcementError`."""
        try:
            current = dmem.parse(self._tree.read(f"{cgroups_of(self._tree, limited)[0]}/dmem.current"))
        except OSError as error:
            raise EnforcementError(f"what the kernel has booked can't be read: {error}") from error
        return current.get(self._region(limited.device)) or 0

    @property
    def kernel(self) -> str:
        """The one that runs: what was proven on another does not count."""
        try:
            return self._tree.read(KERNEL).strip()
        except OSError:
            return ""

    def _ask(self, device: DeviceInfo) -> str:
        problem = self._cgroups.why_none()
        if problem:
            return f"the kernel limits cgroups, and there are none: {problem}"
        if device.parent_uuid and vendor_of(device) == "amd":
            return "the kernel limits a card as a whole, not its parts"
        mount = self._tree.cgroups()
        base = self._cgroups.base()
        if mount is None or not base:
            return "leases have no cgroup of their own here"
        try:
            self._region(device)
        except EnforcementError as error:
            return error.message
        try:
            self._tree.make(str(mount.directory_of(base)))
        except OSError as error:
            return f"cgroup {base}: {error.strerror}"
        problem = switch_on(self._tree, mount, base)
        if problem or self._cgroups.proving:
            return problem
        proof = proofs.read(self._cgroups.proofs).get(proof_name(device))
        if proof is None:
            return "not proven on this machine: run `aliquot doctor` as root, on an idle card"
        if proof.kernel != self.kernel:
            return f"proven with Linux {proof.kernel}, and this is {self.kernel}: run `aliquot doctor` again"
        return ""

    def _region(self, device: DeviceInfo) -> str:
        """What the kernel calls the card's memory. Raises `EnforcementError`."""
        mount = self._tree.cgroups()
        try:
            known = dmem.parse(self._tree.read(f"{mount.directory}/dmem.capacity")) if mount is not None else {}
        except OSError as error:
            raise EnforcementError(NO_DMEM) from error
        regions = dmem.regions_of(known, device.pci_bus_id)
        if not regions:
            raise EnforcementError(f"the kernel counts no memory of {device.pci_bus_id} by cgroup")
        if len(regions) > 1:
            raise EnforcementError(f"its memory is {len(regions)} regions, which can't be limited as one")
        return regions[0]

    def _set(self, path: str, region: str, limit_bytes: int | None) -> None:
        try:
            self._tree.write(f"{path}/dmem.max", dmem.order(region, limit_bytes))
        except OSError as error:
            raise EnforcementError(f"the kernel does not take the limit: {path}/dmem.max: {error.strerror}") from error


def proof_name(device: DeviceInfo) -> str:
    """What a proof on this device is kept as."""
    return f"dmem/{vendor_of(device)}"
