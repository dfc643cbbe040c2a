"""Tier `mps`: the MPS server refuses what goes beyond a client's limit.

One control daemon per device and tenant: a fatal fault ends the work of every client of a server, so tenants never
share one. The limit is per client process, and a lease may have several; the watchdog stays on behind it. A process
that doesn't find the daemon gets the whole device without being told, so the lease's processes are compared with
the daemon's clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from urllib.parse import quote

from aliquot.agent.core.model import Holder, SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.agent.enforce.by_vendor import vendor_of
from aliquot.agent.enforce.mps_control import PROGRAM, MpsControl, installed
from aliquot.common.tiers import Tier

_Domain = tuple[str, str]


class MpsEnforcer:
    """See `base.Enforcer`. `directory` holds the daemons' pipes and logs."""

    tier = Tier.MPS

    def __init__(
        self,
        directory: Path,
        unusable: Callable[[DeviceInfo], str] = lambda device: "",
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`tell` takes what people should know of, a sentence each; from any thread."""
        self._directory = directory
        self._unusable = unusable
        self._tell = tell
        self._limits: dict[_Domain, dict[str, SliceSpec]] = {}
        """By slice."""
        self._outside: dict[str, frozenset[int]] = {}
        """Processes that were not the daemon's clients when last looked for, by slice."""
        self._told: dict[str, set[int]] = {}
        self._faulty: set[_Domain] = set()
        """Whose daemons are to be started anew."""

    def available(self, limited: Limited) -> str:
        """Empty where a daemon can be started for the device."""
        if not installed():
            return f"{PROGRAM} is not installed: it comes with NVIDIA's driver"
        if vendor_of(limited.device) != "nvidia":
            return f"MPS is NVIDIA's, and this is a device of {limited.device.vendor}"
        if limited.device.mig_profile:
            return "this agent runs no MPS within MIG instances"
        if limited.spec.memory_bytes < 1 << 20:
            return "MPS limits memory in whole MiB"
        return self._unusable(limited.device)

    def apply(self, limited: Limited) -> None:
        """Have a daemon running that allows its clients no more than its largest lease. Raises `EnforcementError`."""
        limits = self._limits.setdefault(_domain(limited), {})
        limits[limited.spec.slice_id] = limited.spec
        control = self._control(limited)
        if control.alive() and control.failed_servers():
            control.restart()
            self._faulty.discard(_domain(limited))
        else:
            control.start()
        control.set_memory_limit(_most(limits))

    def read_back(self, limited: Limited) -> bool:
        """Whether the daemon answers and its default is what was set. Raises `EnforcementError`."""
        limits = self._limits.get(_domain(limited), {})
        control = self._control(limited)
        if limited.spec.slice_id not in limits or not control.alive():
            return False
        if control.failed_servers():
            self._tell_fault(limited, limits)
            return False
        return control.memory_limit_bytes() == _most(limits) >> 20 << 20

    def _tell_fault(self, limited: Limited, slice_ids: Collection[str]) -> None:
        """Once, although every slice under the daemon is read back."""
        if _domain(limited) in self._faulty:
            return
        self._faulty.add(_domain(limited))
        self._tell(
            f"{limited.device.uuid}: a fatal fault in a program of tenant {limited.spec.tenant!r} has ended the work "
            f"of all its programs under MPS there (slices {', '.join(sorted(slice_ids))}). The daemon is started anew; "
            "so must be what ran under it"
        )

    def clear(self, limited: Limited) -> None:
        """Lower the daemon's limit to what the remaining leases need; the last one's end stops it."""
        self._drop(_domain(limited), limited.spec.slice_id)

    def forget(self, holder: Holder) -> None:
        """The same for all that it had, on whichever devices."""
        for domain, limits in list(self._limits.items()):
            for spec in [spec for spec in limits.values() if spec.holder == holder]:
                self._drop(domain, spec.slice_id)

    def _drop(self, domain: _Domain, slice_id: str) -> None:
        limits = self._limits.get(domain, {})
        limits.pop(slice_id, None)
        self._outside.pop(slice_id, None)
        self._told.pop(slice_id, None)
        control = self._control_of(domain)
        if limits:
            control.set_memory_limit(_most(limits))
        else:
            self._limits.pop(domain, None)
            self._faulty.discard(domain)
            control.stop()

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """Where the daemon is, and this lease's own, lower limits. A client can only lower what the daemon allows."""
        spec, control = limited.spec, self._control(limited)
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(control.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(control.log_directory),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={spec.memory_bytes >> 20}M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, -(-spec.share_milli // 10))),
        }

    def admit(self, limited: Limited, uid: int) -> None:
        """Refuse a second user of a daemon: its server runs as one. Raises `EnforcementError`."""
        owner = self._control(limited).pipe_directory.parent / "owner"
        try:
            known = owner.read_text(encoding="ascii") if owner.exists() else ""
            if known and known != str(uid):
                raise EnforcementError(
                    f"the MPS daemon of tenant {limited.spec.tenant!r} serves uid {known} on this device, not uid {uid}"
                )
            owner.write_text(str(uid), encoding="ascii")
        except OSError as error:
            raise EnforcementError(f"the MPS daemon's folder can't be used: {error}") from error

    def escaped(self, limited: Limited, pids: Collection[int]) -> list[int]:
        """Of a lease's processes on the device, those the daemon doesn't know: nothing holds them but the watchdog.

        Raises `EnforcementError`.
        """
        return sorted(set(pids) - set(self._control(limited).clients()))

    def look_for_escaped(self, limited: Limited, pids: Collection[int]) -> None:
        """Tell of processes of the slice that two looks in a row found outside the daemon: one that has just begun may
        not be its client yet. Raises `EnforcementError`.
        """
        slice_id = limited.spec.slice_id
        before = self._outside.get(slice_id)
        now = frozenset(self.escaped(limited, pids)) if pids else frozenset[int]()
        self._outside[slice_id] = now
        told = self._told.setdefault(slice_id, set())
        told &= now
        for pid in sorted((now & before if before is not None else frozenset[int]()) - told):
            told.add(pid)
            self._tell(
                f"process {pid} of slice {slice_id} is not under MPS (it did not find, or did not use, "
                f"{self._control(limited).pipe_directory}): only the watchdog holds it"
            )

    def _control(self, limited: Limited) -> MpsControl:
        return self._control_of(_domain(limited))

    def _control_of(self, domain: _Domain) -> MpsControl:
        uuid, tenant = domain
        return MpsControl(self._directory / f"{uuid}.{quote(tenant, safe='')}", uuid)


def _most(limits: Mapping[str, SliceSpec]) -> int:
    """What the largest of its leases needs of a daemon."""
    return max(spec.memory_bytes for spec in limits.values())


def _domain(limited: Limited) -> _Domain:
    return limited.device.uuid, limited.spec.tenant
