"""Whether an image of kernels that a client has sent says truly how long it is."""

from __future__ import annotations

import struct

from aliquot.remote.core.language import MessageError

_ELF = struct.Struct("<32xQQ4x2xHHHH2x")
"""Of the head of a file: where the heads of its segments and sections begin, and size and number of each."""
_PROGRAM = 56
_SECTION = struct.Struct("<4xI16xQQ24x")
"""Of a section's head: kind, where it begins, its size."""
_NOT_IN_THE_FILE = 8
_FAT_BINARY = struct.Struct("<6xHQ")
"""Of the head of a fat binary: the head's size, and that of what follows."""


def check_image(image: bytes) -> None:
    """That an image says truly how long it is, so that the driver reads nothing behind it.

    Raises:
        MessageError: it is neither PTX, nor an ELF file or a fat binary within its own bytes.
    """
    if image.startswith(b"\x7fELF"):
        if len(image) < 64 or image[4] != 2:
            raise MessageError("a cubin is an ELF file of 64 bits")
        programs, sections, program_size, program_count, section_size, section_count = _ELF.unpack_from(image)
        ends = [
            programs + program_count * _PROGRAM if program_count else 0,
            sections + section_count * _SECTION.size if section_count else 0,
        ]
        sized = (not program_count or program_size == _PROGRAM) and (not section_count or section_size == _SECTION.size)
        if not sized or max(ends) > len(image):
            raise MessageError("the cubin says that it is longer than it is")
        for number in range(section_count):
            kind, start, size = _SECTION.unpack_from(image, sections + number * _SECTION.size)
            if kind != _NOT_IN_THE_FILE and start + size > len(image):
                raise MessageError("the cubin says that it is longer than it is")
    elif image.startswith(b"\x50\xed\x55\xba"):
        if len(image) < 16 or sum(_FAT_BINARY.unpack_from(image)) > len(image):
            raise MessageError("the fat binary says that it is longer than it is")
    elif b"\0" in image[:-1] or b".version" not in image:
        raise MessageError("an image is PTX, a cubin or a fat binary")
