"""Small files that are written atomically: whole or absent after a crash at any moment.

A record is one line that says what it is, and the payload:

    aliquot <kind> <version> <sha256 of the payload>
    {json}

It is written to a temporary file beside it, fsynced, renamed over the old one, and the directory is fsynced. Reading
checks the sum. A record of a newer version is not damaged: the message says which agent to run.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from aliquot.agent.disk.files import DISK, Files

T = TypeVar("T")

VERSION = 1
MAX_RECORD_BYTES = 1 << 20
TEMPORARY_SUFFIX = ".tmp"


class Damaged(Exception):
    """A record that can't be believed. The message says what is wrong with it."""


class Records(Protocol):
    """Small files that are whole or not there: this module is one: those of the real disk."""

    def read_record(self, path: Path, kind: str, form: type[T]) -> T:
        """What was written. Raises `OSError` and `Damaged`."""

    def write_record(self, path: Path, kind: str, payload: Mapping[str, Any] | msgspec.Struct) -> None:
        """Durable when it returns. Raises `OSError`."""


def encode(kind: str, payload: Mapping[str, Any] | msgspec.Struct) -> bytes:
    """The bytes of a record."""
    body = msgspec.json.encode(payload)
    digest = hashlib.sha256(body).hexdigest()
    return f"aliquot {kind} {VERSION} {digest}\n".encode() + body + b"\n"


def decode(data: bytes, kind: str) -> bytes:
    """The payload of a record. Raises `Damaged`."""
    head, separator, rest = data.partition(b"\n")
    words = head.decode("ascii", errors="replace").split(" ")
    if not separator or len(words) != 4 or words[0] != "aliquot":
        raise Damaged("not a record of aliquot, or cut off in its first line")
    if words[1] != kind:
        raise Damaged(f"a record of kind {words[1]!r} where {kind!r} was expected")
    if not words[2].isdecimal() or words[2] == "0":
        raise Damaged("its first line names no format")
    if int(words[2]) > VERSION:
        raise Damaged(f"written by a newer agent (format {words[2]}; this one reads up to {VERSION}): update this one")
    body = rest.removesuffix(b"\n")
    if hashlib.sha256(body).hexdigest() != words[3]:
        raise Damaged("its checksum does not match: cut off or changed")
    return body


def read_bytes(path: Path, kind: str, files: Files = DISK) -> bytes:
    """The payload of the record in a file. Raises `Damaged` and `OSError`."""
    data = files.read(path, MAX_RECORD_BYTES + 1)
    if len(data) > MAX_RECORD_BYTES:
        raise Damaged(f"larger than {MAX_RECORD_BYTES} bytes")
    return decode(data, kind)


def read_record(path: Path, kind: str, form: type[T], files: Files = DISK) -> T:
    """The payload of the record in a file. Raises `Damaged` and `OSError`."""
    try:
        return msgspec.json.decode(read_bytes(path, kind, files), type=form)
    except msgspec.DecodeError as error:
        raise Damaged(str(error)) from error


def write_record(
    path: Path, kind: str, payload: Mapping[str, Any] | msgspec.Struct, files: Files = DISK, *, durable: bool = True
) -> None:
    """Write a record. With `durable`, it survives a loss of power from the moment this returns; without, it
    survives the death of this process only. Raises `OSError`; the old record is then still there.
    """
    write_many({path: encode(kind, payload)}, files, durable=durable)


def write_many(contents: Mapping[Path, bytes], files: Files = DISK, *, durable: bool = True) -> None:
    """Write several files; each is whole or as it was. One directory fsync for those of one directory."""
    written: list[tuple[Path, Path]] = []
    try:
        for path, data in contents.items():
            temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
            written.append((temporary, path))
            files.write(temporary, data, sync=durable)
        for temporary, path in written:
            files.rename(temporary, path)
    except OSError:
        for temporary, _ in written:
            with contextlib.suppress(OSError):
                files.remove(temporary)
        raise
    if durable:
        for directory in dict.fromkeys(path.parent for path in contents):
            files.sync_directory(directory)
