"""The two files beside a lease's preload library: what it may hold, and what it says it holds.

    limit    written here only. The lease's processes map it for reading.
    account  the lease's processes charge themselves in it. Nothing in it is believed: it is read with bounds, never
             mapped (a tenant may cut it short), never locked (a tenant may hold its lock for ever).

Both are kept open for writing from the moment they are made: a file that somebody else has open for writing can't be
given a file lease (`fcntl(F_SETLEASE)`), by which a tenant could have the agent wait for it. A file that had one
before this agent opened it is not waited for either, but made anew.

The layout is that of `native/preload/layout.h`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from aliquot.agent.enforce.base import EnforcementError

LIMIT_MAGIC = int.from_bytes(b"AQLIM1", "little")
ACCOUNT_MAGIC = int.from_bytes(b"AQACC1", "little")
VERSION = 2
DEVICES_MAX = 16
SLOTS_MAX = 512
LIBRARY = "libaliquot_preload.so"
LEASE_NAME_MAX = 63

_MODES = {"account": 0o600, "limit": 0o444}

_libc = ctypes.CDLL(None, use_errno=True)


class _LimitDevice(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_ubyte * 16),
        ("memory_bytes", ctypes.c_uint64),
        ("excess_bytes", ctypes.c_uint64),
        ("context_bytes", ctypes.c_uint64),
        ("used_us", ctypes.c_uint64),
        ("paced", ctypes.c_uint32),
        ("allowed_milli", ctypes.c_uint32),
    )


class _LimitFile(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("device_count", ctypes.c_uint32),
        ("lease", ctypes.c_char * 64),
        ("devices", _LimitDevice * DEVICES_MAX),
    )


class _Slot(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_int32),
        ("life_locked", ctypes.c_uint32),
        ("start_ticks", ctypes.c_uint64),
        ("pid_namespace", ctypes.c_uint64),
        ("held", ctypes.c_uint64 * DEVICES_MAX),
    )


class _AccountFile(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("slot_count", ctypes.c_uint32),
        ("mutex", ctypes.c_uint64 * 8),
        ("held", ctypes.c_uint64 * DEVICES_MAX),
        ("peak", ctypes.c_uint64 * DEVICES_MAX),
        ("slots", _Slot * SLOTS_MAX),
        ("context", ctypes.c_uint64 * DEVICES_MAX),
        ("paces", ctypes.c_uint64 * (5 * DEVICES_MAX)),
    )


class DeviceLimit(msgspec.Struct, frozen=True):
    """What a lease may have of one device."""

    memory_bytes: int
    context_bytes: int = 0
    """What to reserve for a context before its real size can be measured."""
    paced: bool = False
    """Whether its launches may be held back; how much, says `LeaseFiles.set_allowance`."""


class SlotView(msgspec.Struct, frozen=True):
    """What one process says of itself."""

    pid: int
    start_ticks: int
    held_bytes: tuple[int, ...]
    """By the device's place in the limit file."""


def uuid_bytes(uuid: str) -> bytes:
    """The 16 bytes of a device's UUID, whatever stands before them (`GPU-`, `MIG-`). Raises `EnforcementError`."""
    digits = uuid.partition("-")[2].replace("-", "")
    try:
        found = bytes.fromhex(digits[:32])
    except ValueError:
        found = b""
    if len(found) != 16:
        raise EnforcementError(f"{uuid!r} is no device UUID")
    return found


class LeaseFiles:
    """The folder of one holder. Every write is idempotent; files appear whole or not at all. Usable from any thread.
    No call waits for the lease's processes.
    """

    def __init__(self, directory: Path, lease: str) -> None:
        self.directory = directory
        self._lease = lease.encode()[:LEASE_NAME_MAX]
        self._descriptors: dict[str, int] = {}
        self._lock = threading.Lock()
        """Held while a descriptor is used: another thread may replace it."""
        weakref.finalize(self, _close_all, self._descriptors)

    @property
    def library(self) -> Path:
        """The library as the lease's processes load it."""
        return self.directory / LIBRARY

    def create(self, library: Path) -> None:
        """Make what is missing. Raises `OSError`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o755)
        if not self._whole("account", ctypes.sizeof(_AccountFile), ACCOUNT_MAGIC):
            with self._new("account", 0o600) as descriptor:
                os.ftruncate(descriptor, ctypes.sizeof(_AccountFile))
                _fill_account(descriptor)
        if not self._is_current(library):
            with self._new(LIBRARY, 0o555) as descriptor, open(descriptor, "wb", closefd=False) as target:
                target.write(library.read_bytes())
        if not self._whole("limit", ctypes.sizeof(_LimitFile), LIMIT_MAGIC):
            with self._new("limit", 0o444) as descriptor:
                empty = _LimitFile(magic=LIMIT_MAGIC, version=VERSION, lease=self._lease)
                os.write(descriptor, bytes(empty))

    def set_limit(self, uuid: str, limit: DeviceLimit) -> None:
        """Add or change a device. Raises `EnforcementError` and `OSError`."""
        file = self._limits()
        index = _index_of(file, uuid)
        fresh = index is None
        index = file.device_count if index is None else index
        if index >= DEVICES_MAX:
            raise EnforcementError(f"a lease can hold at most {DEVICES_MAX} devices of a node by preload")
        if fresh:
            self._write("limit", _at(index, "uuid"), uuid_bytes(uuid))
            self._write("limit", _at(index, "excess_bytes"), bytes(8))
        self._write("limit", _at(index, "context_bytes"), limit.context_bytes.to_bytes(8, "little"))
        self._write("limit", _at(index, "paced"), limit.paced.to_bytes(4, "little"))
        self._write("limit", _at(index, "memory_bytes"), limit.memory_bytes.to_bytes(8, "little"))
        if fresh:  # last: nobody looks at a device beyond the count
            self._write("limit", _LimitFile.device_count.offset, (index + 1).to_bytes(4, "little"))

    def clear_limit(self, uuid: str) -> bool:
        """Let nothing more be allocated on a device. True: no device has a limit any more."""
        file = self._limits()
        cleared = _index_of(file, uuid)
        if cleared is not None:
            self._write("limit", _at(cleared, "memory_bytes"), bytes(8))
        return not any(file.devices[i].memory_bytes for i in range(file.device_count) if i != cleared)

    def limit_of(self, uuid: str) -> DeviceLimit | None:
        """What the file says now; None where there is none."""
        try:
            file = self._limits()
        except (OSError, EnforcementError):
            return None
        index = _index_of(file, uuid)
        if index is None:
            return None
        device = file.devices[index]
        return DeviceLimit(device.memory_bytes, device.context_bytes, bool(device.paced))

    def set_allowance(self, uuid: str, allowed_milli: int, used_us: int) -> None:
        """How much of a device's time the lease may use now (0: all that there is), and what it has used while it had
        such an allowance. Raises `EnforcementError` and `OSError`.
        """
        index = _index_of(self._limits(), uuid)
        if index is not None:
            self._write("limit", _at(index, "used_us"), used_us.to_bytes(8, "little"))
            self._write("limit", _at(index, "allowed_milli"), allowed_milli.to_bytes(4, "little"))

    def set_excess(self, uuid: str, excess_bytes: int) -> None:
        """Tell the lease's processes what they hold beyond their account. Raises `EnforcementError` and `OSError`."""
        index = _index_of(self._limits(), uuid)
        if index is not None:
            self._write("limit", _at(index, "excess_bytes"), excess_bytes.to_bytes(8, "little"))

    def set_context(self, uuid: str, context_bytes: int) -> None:
        """What to reserve for a context before it is made. Raises `EnforcementError` and `OSError`."""
        file = self._limits()
        index = _index_of(file, uuid)
        if index is not None and file.devices[index].context_bytes != context_bytes:
            self._write("limit", _at(index, "context_bytes"), context_bytes.to_bytes(8, "little"))

    def measured_context_bytes(self, uuid: str) -> int | None:
        """The least that making a context took, as the lease's processes say; None: none has measured one."""
        found = self._account_of(uuid)
        if found is None:
            return None
        account, index = found
        return int(account.context[index]) or None

    def held_bytes(self, uuid: str) -> int | None:
        """What the lease's processes say they hold of a device; None where the account can't be read as one."""
        found = self._account_of(uuid)
        if found is None:
            return None
        account, index = found
        return sum(int(slot.held[index]) for slot in account.slots if slot.pid)

    def peak_bytes(self, uuid: str) -> int | None:
        """The most that the lease's processes said they held of a device since this was last asked; None where the
        account can't be read as one. Raises `EnforcementError` and `OSError`.
        """
        found = self._account_of(uuid)
        if found is None:
            return None
        account, index = found
        self._write("account", int(_AccountFile.peak.offset) + index * 8, bytes(8))
        held = sum(int(slot.held[index]) for slot in account.slots if slot.pid)
        return max(held, int(account.peak[index]))

    def slots(self) -> list[SlotView]:
        """The processes that say they hold something."""
        account = self._account()
        if account is None:
            return []
        return [SlotView(s.pid, s.start_ticks, tuple(s.held)) for s in account.slots if s.pid]

    def admit(self, uid: int) -> None:
        """Let processes of a user charge themselves; nobody else but root may. Raises `OSError`."""
        path = self.directory / "account"
        if path.stat().st_uid != uid:
            os.chown(path, uid, -1)
        path.chmod(0o600)

    def remove(self) -> None:
        """Remove the folder; processes that still run keep what they have mapped, and may allocate nothing."""
        with self._lock:
            _close_all(self._descriptors)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _account(self) -> _AccountFile | None:
        data = self._read("account", ctypes.sizeof(_AccountFile))
        if len(data) != ctypes.sizeof(_AccountFile):
            return None
        account = _AccountFile.from_buffer_copy(data)
        return account if (account.magic, account.version) == (ACCOUNT_MAGIC, VERSION) else None

    def _account_of(self, uuid: str) -> tuple[_AccountFile, int] | None:
        """The account, and the place of a device in it; None where it has none, or can't be read as one."""
        index, account = _index_of(self._limits(), uuid), self._account()
        return None if index is None or account is None else (account, index)

    def _limits(self) -> _LimitFile:
        data = self._read("limit", ctypes.sizeof(_LimitFile))
        if len(data) == ctypes.sizeof(_LimitFile):
            file = _LimitFile.from_buffer_copy(data)
            if (file.magic, file.version) == (LIMIT_MAGIC, VERSION) and file.device_count <= DEVICES_MAX:
                return file
        raise EnforcementError(f"{self.directory / 'limit'} is damaged", hint="the agent makes it anew")

    def _write(self, name: str, offset: int, data: bytes) -> None:
        """Change one field in place, where the lease's processes have it mapped: they see it whole at once."""
        with self._lock:
            os.pwrite(self._descriptor(name), data, offset)

    def _read(self, name: str, size: int) -> bytes:
        """A file that a tenant may have cut short or made huge: no more than one byte too many is read."""
        try:
            with self._lock:
                return os.pread(self._descriptor(name), size + 1, 0)
        except OSError:
            return b""

    def _descriptor(self, name: str) -> int:
        """The file that is in the folder now, open for reading and writing. Raises `OSError`."""
        path = self.directory / name
        there = path.stat(follow_symlinks=False)
        known = self._descriptors.get(name)
        if known is not None:
            if os.path.samestat(os.fstat(known), there):
                return known
            os.close(self._descriptors.pop(name))
        self._descriptors[name] = found = _open_own(path, _MODES[name])
        return found

    def _whole(self, name: str, size: int, magic: int) -> bool:
        data = self._read(name, size)
        return len(data) == size and int.from_bytes(data[:8], "little") == magic

    def _is_current(self, library: Path) -> bool:
        try:
            descriptor = os.open(self.library, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor, not a path
                return file.read() == library.read_bytes()
        except OSError:
            return False

    @contextlib.contextmanager
    def _new(self, name: str, mode: int) -> Iterator[int]:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.directory)
        try:
            yield descriptor
            os.fchmod(descriptor, mode)
            Path(temporary).replace(self.directory / name)
            if name in _MODES:
                with self._lock:
                    before = self._descriptors.pop(name, None)
                    self._descriptors[name] = os.dup(descriptor)
                if before is not None:
                    os.close(before)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        finally:
            os.close(descriptor)


def _open_own(path: Path, mode: int) -> int:
    """Open one of the agent's own files for writing, which its mode may forbid: that is for others (and binds only
    where we aren't root). Raises `BlockingIOError` instead of waiting for who has a file lease on it.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except PermissionError:
        path.chmod(0o600)
        try:
            return os.open(path, flags)
        finally:
            path.chmod(mode)


def _close_all(descriptors: dict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _index_of(file: _LimitFile, uuid: str) -> int | None:
    wanted = uuid_bytes(uuid)
    return next((i for i in range(file.device_count) if bytes(file.devices[i].uuid) == wanted), None)


def _at(index: int, field: str) -> int:
    inside: int = getattr(_LimitDevice, field).offset
    return int(_LimitFile.devices.offset) + index * ctypes.sizeof(_LimitDevice) + inside


def _fill_account(descriptor: int) -> None:
    process_shared = robust = 1
    with mmap.mmap(descriptor, ctypes.sizeof(_AccountFile)) as memory:
        file = _AccountFile.from_buffer(memory)
        attributes = ctypes.create_string_buffer(64)
        _libc.pthread_mutexattr_init(attributes)
        _libc.pthread_mutexattr_setpshared(attributes, process_shared)
        _libc.pthread_mutexattr_setrobust(attributes, robust)
        _libc.pthread_mutex_init(ctypes.byref(file, _AccountFile.mutex.offset), attributes)
        file.version = VERSION
        file.slot_count = SLOTS_MAX
        file.magic = ACCOUNT_MAGIC
        del file


def merged_preload(library: Path, present: Mapping[str, str]) -> str:
    """LD_PRELOAD with our library first, and whatever the user preloads kept after it."""
    rest = [word for word in present.get("LD_PRELOAD", "").replace(":", " ").split() if Path(word).name != LIBRARY]
    return ":".join([str(library), *rest])
