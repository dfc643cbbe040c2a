"""What `aliquot doctor` has proven on this machine: kept in the state directory, good for the kernel that it was tried
on.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from aliquot.common.own_files import make_private


class Proof(msgspec.Struct, frozen=True):
    """One tier on devices of one vendor."""

    kernel: str
    text: str = ""


Proofs = dict[str, Proof]


def read(path: Path | None) -> Proofs:
    """By `<means>/<vendor>`, such as `dmem/amd`; nothing where nothing was proven, or it can't be read."""
    if path is None:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=Proofs)
    except (OSError, msgspec.DecodeError):
        return {}


def write(path: Path, name: str, proof: Proof | None) -> None:
    """None: it was found not to hold. Raises `OSError`."""
    known = read(path)
    known.pop(name, None)
    if proof is not None:
        known[name] = proof
    make_private(path.parent)
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(msgspec.json.encode(known))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
