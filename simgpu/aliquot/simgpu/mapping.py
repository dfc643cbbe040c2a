"""The scenario file in memory, and the lock that all its users share.

The lock is a robust, process-shared pthread mutex inside the file, the same one the C libraries take: a process that
dies with it leaves it to the next one instead of stopping everybody.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aliquot.simgpu import layout
from aliquot.simgpu.errors import ScenarioError

_libc = ctypes.CDLL(None, use_errno=True)
_MAKE_ONE = "make one with `python -m aliquot.simgpu create PATH`"
_PROCESS_SHARED, _ROBUST = 1, 1
_FUTEX_WAKE = 1
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())


class Mapping:
    """One process's view of a scenario file. Use `with mapping.locked() as file:` for whatever must be consistent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ScenarioError(f"can't open the scenario {path}: {error.strerror}", hint=_MAKE_ONE) from error
        try:
            if os.fstat(descriptor).st_size < layout.FILE_BYTES:
                raise ScenarioError(f"{path} is not a scenario of this version", hint=_MAKE_ONE)
            self._memory = mmap.mmap(descriptor, layout.FILE_BYTES)
        finally:
            os.close(descriptor)
        self._file = layout.ScenarioFile.from_buffer(self._memory)
        if (self._file.magic, self._file.version) != (layout.MAGIC, layout.VERSION):
            raise ScenarioError(f"{path} is not a scenario of version {layout.VERSION}", hint=_MAKE_ONE)

    @contextmanager
    def locked(self) -> Iterator[layout.ScenarioFile]:
        """The file's contents, which nobody else reads or changes meanwhile."""
        mutex = ctypes.byref(self._file.mutex)
        result = _libc.pthread_mutex_lock(mutex)
        if result == errno.EOWNERDEAD:
            _libc.pthread_mutex_consistent(mutex)
        elif result:
            raise ScenarioError(f"can't lock {self.path}: {os.strerror(result)}", hint=_MAKE_ONE)
        try:
            yield self._file
        finally:
            _libc.pthread_mutex_unlock(mutex)

    def wake_event_waiters(self) -> None:
        """Call after raising events_futex. Waiters look by themselves now and then where futex can't be called."""
        if _SYS_FUTEX is not None:
            word = ctypes.byref(self._file, layout.ScenarioFile.events_futex.offset)
            _libc.syscall(_SYS_FUTEX, word, _FUTEX_WAKE, 0x7FFFFFFF, None, None, 0)

    def close(self) -> None:
        """Drops the view. A structure that a caller still holds keeps the memory mapped until it goes."""
        del self._file
        with suppress(BufferError):
            self._memory.close()


def initialise_mutex(file: layout.ScenarioFile) -> None:
    """Makes the mutex of a new file, before anybody else can see it."""
    attributes = ctypes.create_string_buffer(64)
    _libc.pthread_mutexattr_init(attributes)
    _libc.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED)
    _libc.pthread_mutexattr_setrobust(attributes, _ROBUST)
    result = _libc.pthread_mutex_init(ctypes.byref(file.mutex), attributes)
    _libc.pthread_mutexattr_destroy(attributes)
    if result:
        raise ScenarioError(f"this system has no robust process-shared mutex: {os.strerror(result)}")
