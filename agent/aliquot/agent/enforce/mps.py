"""Tier `mps`: the MPS server refuses what goes beyond a client's limit.

Where the control program knows names (`mps_control`), one daemon a device serves all tenants, with a namespace for each
lease: their programs run at the same time, and a fatal fault in one ends the work of all. Where it does not, each
tenant has a daemon, and so a server, of its own on each device: servers take turns.

The limit is per client process, and a lease may have several; so the driver's limit stands behind it where there is
one, and the watchdog anywhere. A process that doesn't find the daemon gets the whole device without being told, so the
lease's processes are compared with the daemon's clients.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from aliquot.agent.core.model import Holder, SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError, Enforcer, Limited
from aliquot.agent.enforce.by_vendor import vendor_of
from aliquot.agent.enforce.mps_control import PROGRAM, MpsControl, NamedMpsControl, Part, installed, knows_names
from aliquot.common.tiers import Tier

log = logging.getLogger(__name__)

FOLDER = "mps"
"""In the directory of the tiers' files."""
SILENT_S = 30.0
TRY_EVERY_S = 30.0
"""How often it is tried whether a server takes others, beside each time that a client has gone: one may come unseen."""
_Domain = tuple[str, str]


class MpsEnforcer:
    """See `base.Enforcer`. `directory` holds the daemons' pipes and logs."""

    tier = Tier.MPS

    def __init__(
        self,
        directory: Path,
        unusable: Callable[[DeviceInfo], str] = lambda device: "",
        tell: Callable[[str], None] = lambda text: None,
        behind: Enforcer | None = None,
    ) -> None:
        """`tell` takes what people should know of, a sentence each; from any thread. `behind`: a tier that limits all
        processes of a slice together, used beside this one where it can be had.
        """
        self._directory = directory
        self._unusable = unusable
        self._tell = tell
        self._behind = behind
        self._limits: dict[_Domain, dict[str, SliceSpec]] = {}
        """By slice."""
        self._outside: dict[str, frozenset[int]] = {}
        """Processes that were not the daemon's clients when last looked for, by slice."""
        self._told: dict[str, set[int]] = {}
        self._clients: dict[_Domain, frozenset[int]] = {}
        """When last looked for."""
        self._try_at_s: dict[_Domain, float] = {}
        self._silent_until_s = 0.0
        """A daemon has not answered before a kill: none is asked again so soon, as kills must not wait."""
        self._faulty: set[_Domain] = set()
        """Whose daemons are to be started anew."""

    @functools.cached_property
    def together(self) -> bool:
        """Whether one server serves all tenants of a device, so that their programs run at the same time."""
        return knows_names()

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
        """Have a daemon running that allows its clients no more than their leases. Raises `EnforcementError`."""
        domain = self._domain(limited)
        limits = self._limits.setdefault(domain, {})
        limits[limited.spec.slice_id] = limited.spec
        control = self._control(limited)
        if control.alive() and (domain in self._faulty or control.failed()):
            control.restart()
        control.start()
        self._faulty.discard(domain)
        control.set_parts(_parts(limits))
        behind = self._behind_of(limited)
        if behind is not None:
            behind.apply(limited)

    def read_back(self, limited: Limited) -> bool:
        """Whether the daemon says what was set, and what stands behind it does. Raises `EnforcementError`."""
        domain = self._domain(limited)
        limits = self._limits.get(domain, {})
        control = self._control(limited)
        if limited.spec.slice_id not in limits or domain in self._faulty or not control.alive():
            return False
        if control.failed():
            self._tell_fault(limited, "a fatal fault in one of its programs has ended the work of all")
            return False
        behind = self._behind_of(limited)
        if behind is not None and not behind.read_back(limited):
            return False
        return control.in_force(_parts(limits))

    def _tell_fault(self, limited: Limited, what: str) -> None:
        """Once, although every slice under the daemon is read back."""
        domain = self._domain(limited)
        if domain in self._faulty:
            return
        self._faulty.add(domain)
        whose = f"of tenant {domain[1]!r}" if domain[1] else "of all tenants"
        slices = ", ".join(sorted(self._limits[domain]))
        self._tell(
            f"{limited.device.uuid}: the MPS server {whose} (slices {slices}): {what}. "
            "The daemon is started anew; so must be what ran under it"
        )

    def clear(self, limited: Limited) -> None:
        """Take the slice's part from the daemon; the last one's end stops it."""
        behind = self._behind_of(limited)
        if behind is not None:
            behind.clear(limited)
        self._drop(self._domain(limited), limited.spec.slice_id)

    def forget(self, holder: Holder) -> None:
        """The same for all that it had, on whichever devices."""
        if self._behind is not None:
            self._behind.forget(holder)
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
            control.set_parts(_parts(limits))
        else:
            self._limits.pop(domain, None)
            self._clients.pop(domain, None)
            self._try_at_s.pop(domain, None)
            self._faulty.discard(domain)
            control.stop()

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """Where the daemon is, and what else a program must have set."""
        own = self._control(limited).environment(limited.spec.slice_id, _part(limited.spec))
        behind = self._behind_of(limited)
        return own if behind is None else {**behind.environment(limited), **own}

    def _behind_of(self, limited: Limited) -> Enforcer | None:
        return None if self._behind is None or self._behind.available(limited) else self._behind

    def admit(self, limited: Limited, uid: int) -> None:
        """Refuse a second user of a daemon whose server runs as one. Raises `EnforcementError`."""
        owner = self._owner_file(self._domain(limited))
        try:
            known = owner.read_text(encoding="ascii") if owner.exists() else ""
            if known and known != str(uid) and not self.together:
                raise EnforcementError(
                    f"the MPS daemon of tenant {limited.spec.tenant!r} serves uid {known} on this device, not uid {uid}"
                )
            owner.write_text(str(uid), encoding="ascii")
        except OSError as error:
            raise EnforcementError(f"the MPS daemon's folder can't be used: {error}") from error

    def release(self, holder: Holder, pid: int) -> None:
        """Before a process of a holder is killed: have its server let go of it. It is killed in any case."""
        for domain, limits in list(self._limits.items()):
            if any(spec.holder == holder for spec in limits.values()) and time.monotonic() >= self._silent_until_s:
                try:
                    self._control_of(domain).terminate(pid)
                except EnforcementError as error:
                    self._silent_until_s = time.monotonic() + SILENT_S
                    log.warning("MPS may not take new clients after process %d: %s", pid, error.message)

    def look_at_clients(self, limited: Limited, pids: Collection[int]) -> None:
        """Tell of processes of the slice that two looks in a row found outside the daemon: one that has just begun may
        not be its client yet. And now and then see whether the server still takes others. Raises `EnforcementError`.
        """
        slice_id, domain, control = limited.spec.slice_id, self._domain(limited), self._control(limited)
        clients = frozenset(control.clients())
        gone = self._clients.get(domain, frozenset()) - clients
        self._clients[domain] = clients
        now_s = time.monotonic()
        due = bool(gone) or now_s >= self._try_at_s.get(domain, 0.0)
        if due:
            self._try_at_s[domain] = now_s + TRY_EVERY_S
        if due and control.hangs(self._owner(domain)):
            said = control.last_words()
            self._tell_fault(limited, f"it takes no new programs{f' (its log ends: {said})' if said else ''}")
        before = self._outside.get(slice_id)
        now = frozenset(pids) - clients
        self._outside[slice_id] = now
        told = self._told.setdefault(slice_id, set())
        told &= now
        for pid in sorted((now & before if before is not None else frozenset[int]()) - told):
            told.add(pid)
            self._tell(
                f"process {pid} of slice {slice_id} is not under MPS (it did not find, or did not use, "
                f"{control.environment(slice_id, _part(limited.spec))['CUDA_MPS_PIPE_DIRECTORY']}): "
                f"only {'the driver and ' if self._behind_of(limited) else ''}the watchdog holds it"
            )

    def described(self, limited: Limited) -> str:
        """What the daemon says of its servers, and the end of its log, for people. Raises `EnforcementError`."""
        return self._control(limited).described()

    def _owner_file(self, domain: _Domain) -> Path:
        return self._control_of(domain).pipe_directory.parent / "owner"

    def _owner(self, domain: _Domain) -> int | None:
        """As whom a program must come for the server to take it."""
        path = self._owner_file(domain)
        return int(path.read_text(encoding="ascii")) if path.exists() else None

    def _control(self, limited: Limited) -> MpsControl:
        return self._control_of(self._domain(limited))

    def _control_of(self, domain: _Domain) -> MpsControl:
        uuid, tenant = domain
        return _control_in(self._directory / f"{uuid}.{quote(tenant, safe='')}", together=self.together)

    def _domain(self, limited: Limited) -> _Domain:
        """Whose programs share a server: where servers have no namespaces, those of one tenant."""
        return limited.device.uuid, "" if self.together else limited.spec.tenant


def look_at(directory: Path) -> Iterator[tuple[str, str]]:
    """The daemons of an agent that keeps them in this directory: of each its device, and whom it serves and what it
    says, for people.
    """
    together = knows_names()
    for path in sorted(directory.glob("*.*")):
        uuid, _, tenant = path.name.partition(".")
        try:
            said = _control_in(path, together=together).described()
        except EnforcementError as error:
            said = error.message
        yield uuid, f"{f'tenant {unquote(tenant)!r}' if tenant else 'all tenants'}: {said}"


def _control_in(directory: Path, *, together: bool) -> MpsControl:
    return (NamedMpsControl if together else MpsControl)(directory, directory.name.partition(".")[0])


def _parts(limits: Mapping[str, SliceSpec]) -> dict[str, Part]:
    return {slice_id: _part(spec) for slice_id, spec in limits.items()}


def _part(spec: SliceSpec) -> Part:
    return Part(spec.memory_bytes, max(1, -(-spec.share_milli // 10)))
