"""A program that takes memory of a card of amdgpu or xe through its render node, piece by piece, and says how far it
came.

    python -m aliquot.agent.doctor.drm_probe --driver amdgpu --minor 128 --most 2Gi --hold

See `common.pieces`. Buffers are made by the drivers' own calls
(`DRM_AMDGPU_GEM_CREATE`, `DRM_XE_GEM_CREATE`), which no program needs a vendor's library for. Not run on hardware yet.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Callable

from aliquot.common import pieces

_NO_ROOM = (errno.ENOMEM, errno.ENOSPC)
_AMDGPU_DOMAIN_VRAM = 4
_AMDGPU_WIPE = 1 << 3
_XE_PLACE_VRAM0 = 1 << 1
_XE_WRITE_COMBINED = 2
_PAGE = 1 << 16


class _AmdgpuCreate(ctypes.Structure):
    """`union drm_amdgpu_gem_create`; the handle comes in the first four bytes."""

    _fields_ = (
        ("size", ctypes.c_uint64),
        ("alignment", ctypes.c_uint64),
        ("domains", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _XeCreate(ctypes.Structure):
    """`struct drm_xe_gem_create`."""

    _fields_ = (
        ("extensions", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("placement", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("vm_id", ctypes.c_uint32),
        ("handle", ctypes.c_uint32),
        ("cpu_caching", ctypes.c_uint16),
        ("pad", ctypes.c_uint16 * 3),
        ("reserved", ctypes.c_uint64 * 2),
    )


def request(number: int, size: int) -> int:
    """The number of a driver's own call that reads and writes a structure of so many bytes."""
    return 3 << 30 | size << 16 | ord("d") << 8 | (0x40 + number)


def _amdgpu(descriptor: int, size: int) -> None:
    asked = _AmdgpuCreate(size, _PAGE, _AMDGPU_DOMAIN_VRAM, _AMDGPU_WIPE)
    fcntl.ioctl(descriptor, request(0, ctypes.sizeof(asked)), asked)


def _xe(descriptor: int, size: int) -> None:
    asked = _XeCreate(size=size, placement=_XE_PLACE_VRAM0, cpu_caching=_XE_WRITE_COMBINED)
    fcntl.ioctl(descriptor, request(1, ctypes.sizeof(asked)), asked)


_CALLS: dict[str, Callable[[int, int], None]] = {"amdgpu": _amdgpu, "xe": _xe}


def main(arguments: list[str] | None = None) -> int:
    """0, or 4 where the card can't be opened."""
    parser = pieces.arguments(__doc__)
    parser.add_argument("--driver", choices=sorted(_CALLS), required=True)
    parser.add_argument("--minor", type=int, required=True)
    options = parser.parse_args(arguments)
    try:
        descriptor = os.open(f"/dev/dri/renderD{options.minor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pieces.say(pieces.answer(missing=str(error)))
        return 4

    def more(size_bytes: int) -> None:
        try:
            _CALLS[options.driver](descriptor, size_bytes)
        except OSError as error:
            code = pieces.OUT_OF_MEMORY if error.errno in _NO_ROOM else 1000 + (error.errno or 0)
            raise pieces.Refused(code) from error

    pieces.say(pieces.take(options, more), hold=options.hold)
    os.close(descriptor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
