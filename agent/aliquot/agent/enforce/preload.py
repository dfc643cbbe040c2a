"""Tier `preload`: a library loaded into the lease's processes denies what goes beyond the limit.

Each holder gets a folder with a copy of the library and, beside it, the files it reads its limit from: the library
finds them by its own path, so that no variable but LD_PRELOAD takes part. It is cooperative: a process that isn't
loaded with it (static, setuid, LD_PRELOAD unset) is seen by the watchdog, which stays on behind this tier, and so is
a lease whose account says less than the driver does. That excess is taken off what the lease may still allocate.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from aliquot.agent import native
from aliquot.agent.core.enforcement import CONTEXT_MAX_BYTES
from aliquot.agent.core.model import Holder
from aliquot.agent.core.pacing import Pace
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.agent.enforce.by_vendor import vendor_of
from aliquot.agent.enforce.preload_files import LIBRARY, DeviceLimit, LeaseFiles, merged_preload
from aliquot.common.tiers import Tier

UNLIMITED_BYTES = 1 << 62
CONTEXT_MIN_BYTES = 32 << 20
"""None is taken to be smaller, whatever an account says."""


def built_library() -> Path:
    """Where the build puts the library."""
    return Path(native.__file__).resolve().parent / "lib" / LIBRARY


class PreloadEnforcer:
    """See `base.Enforcer`.

    `directory` holds one folder per holder; it must be readable by the lease's processes and not mounted `noexec`.
    `throttle`: leases can be held to a part of the device's time.
    """

    tier = Tier.PRELOAD

    def __init__(
        self,
        directory: Path,
        unusable: Callable[[DeviceInfo], str] = lambda device: "",
        library: Path | None = None,
        *,
        throttle: bool = False,
    ) -> None:
        self._directory = directory
        self._unusable = unusable
        self._library = library or built_library()
        self._throttle = throttle
        self._context_bytes: dict[str, int] = {}
        """By model: what contexts took, until a lease has made one of its own."""
        self._excess: dict[Holder, dict[str, int]] = {}
        """By holder and device: at the last poll."""
        self._folders: dict[Holder, LeaseFiles] = {}
        """Those that were used, with their files open."""

    def available(self, limited: Limited) -> str:
        """Empty where the library was built and can be loaded from our folder."""
        if not self._library.is_file():
            return f"{self._library} was not built: `make native`, or install aliquot with ALIQUOT_NATIVE=yes"
        if vendor_of(limited.device) != "nvidia":
            return f"the library knows NVIDIA's driver only, and this is a device of {limited.device.vendor}"
        existing = next((path for path in (self._directory, *self._directory.parents) if path.exists()), None)
        if existing is not None and os.statvfs(existing).f_flag & os.ST_NOEXEC:
            return f"{existing} is mounted noexec, so nothing can be loaded from it: set another directory"
        return self._unusable(limited.device)

    def apply(self, limited: Limited) -> None:
        """Write the limit. Raises `EnforcementError`."""
        self._write(limited, limited.spec.memory_bytes)

    def apply_pace_only(self, limited: Limited) -> None:
        """The same without a limit on memory: another tier has set one. Raises `EnforcementError`."""
        self._write(limited, UNLIMITED_BYTES)

    def _write(self, limited: Limited, memory_bytes: int) -> None:
        context_bytes = self._context_bytes.get(limited.device.product_name, 0)
        files = self._files(limited.spec.holder)
        try:
            files.create(self._library)
            files.set_limit(
                limited.spec.device_uuid, DeviceLimit(memory_bytes, context_bytes, paced=self.paces(limited))
            )
        except OSError as error:
            raise EnforcementError(f"the limit can't be written: {error}") from error

    def paces(self, limited: Limited) -> bool:
        """Whether a slice can be held to a part of its device's time."""
        return self._throttle and not limited.whole_device

    def is_set(self, limited: Limited) -> bool:
        """Whether there are files for the slice's programs to go by."""
        with contextlib.suppress(EnforcementError):
            return self._files(limited.spec.holder).limit_of(limited.spec.device_uuid) is not None
        return False

    def set_pace(self, limited: Limited, pace: Pace) -> None:
        """What a slice may use of its device's time from now on. Raises `EnforcementError` and `OSError`."""
        self._files(limited.spec.holder).set_allowance(limited.spec.device_uuid, pace.allowed_milli, pace.used_us)

    def read_back(self, limited: Limited) -> bool:
        """Whether the file that the lease's processes read says what was ordered, and can be read and trusted."""
        spec = limited.spec
        files = self._files(spec.holder)
        limit = files.limit_of(spec.device_uuid)
        return (
            limit is not None
            and limit.memory_bytes == spec.memory_bytes
            and files.held_bytes(spec.device_uuid) is not None
            and files.library.is_file()
        )

    def clear(self, limited: Limited) -> None:
        """Allow nothing more; with the holder's last device its folder goes."""
        spec = limited.spec
        files = self._files(spec.holder)
        try:
            over = not files.directory.is_dir() or files.clear_limit(spec.device_uuid)
        except EnforcementError:
            over = True  # damaged: nothing in it is of use to anybody
        except OSError as error:
            raise EnforcementError(f"the limit can't be taken away: {error}") from error
        if over:
            self.forget(spec.holder)

    def forget(self, holder: Holder) -> None:
        """Remove its folder, and close its files."""
        self._excess.pop(holder, None)
        self._files(holder).remove()
        self._folders.pop(holder, None)

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """LD_PRELOAD, to be merged with what the user preloads: see `merge_environment`."""
        return {"LD_PRELOAD": str(self._files(limited.spec.holder).library)}

    def merge_environment(self, limited: Limited, present: Mapping[str, str]) -> Mapping[str, str]:
        """LD_PRELOAD with the user's own entries kept behind ours."""
        return {"LD_PRELOAD": merged_preload(self._files(limited.spec.holder).library, present)}

    def admit(self, limited: Limited, uid: int) -> None:
        """Let a user's processes charge themselves. Raises `EnforcementError`."""
        try:
            self._files(limited.spec.holder).admit(uid)
        except OSError as error:
            raise EnforcementError(f"processes of uid {uid} can't be let in: {error}") from error

    def observe(self, limited: Limited, observed_bytes: int | None) -> int:
        """After each poll: what the driver says the slice holds (None: unknown). Answers what it holds beyond its own
        account, in bytes, and takes that off what it may still allocate.

        Charged is always at least held while both move, so a sample is compared with the most that was charged since
        the last poll; and only what two polls in a row have seen counts.
        """
        spec = limited.spec
        files = self._files(spec.holder)
        try:
            account_bytes = files.peak_bytes(spec.device_uuid)
            self._learn_context(limited, files)
        except (OSError, EnforcementError):
            return 0  # gone or damaged: read_back says so
        excess = self._excess.setdefault(spec.holder, {})
        before_bytes = excess.get(spec.device_uuid, 0)
        if account_bytes is None or observed_bytes is None:
            return before_bytes
        excess[spec.device_uuid] = max(0, observed_bytes - account_bytes)
        published = min(excess[spec.device_uuid], before_bytes)
        try:
            files.set_excess(spec.device_uuid, published)
        except (OSError, EnforcementError):
            return 0
        return published

    def _learn_context(self, limited: Limited, files: LeaseFiles) -> None:
        """What a context of the lease took is reserved before it makes another one. Until it has made one, that is
        what one of any lease took on a device of the model.
        """
        measured = files.measured_context_bytes(limited.spec.device_uuid)
        model = limited.device.product_name
        if measured is not None:
            # The account is the tenant's to write.
            measured = min(max(measured, CONTEXT_MIN_BYTES), CONTEXT_MAX_BYTES)
            self._context_bytes[model] = min(measured, self._context_bytes.get(model, measured))
        expected = measured if measured is not None else self._context_bytes.get(model)
        if expected is not None:
            files.set_context(limited.spec.device_uuid, expected)

    def _files(self, holder: Holder) -> LeaseFiles:
        found = self._folders.get(holder)
        if found is None:
            name = f"{quote(holder.lease_id, safe='')}.{holder.lease_epoch}.{holder.member}"
            found = self._folders.setdefault(holder, LeaseFiles(self._directory / name, holder.lease_id))
        return found
