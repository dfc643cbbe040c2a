"""The books as one value: for snapshots on disk, for hashes, and for starting again from them.

What is in it is what each subject saves, in the order of the subjects: see `saving`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, get_args

import msgspec

from aliquot.coordinator.core.evolve import SUBJECTS, rebuild_indexes
from aliquot.coordinator.core.state import State

FORMAT = 7
"""Raised when a version that reads the one before would lose something."""

_SAVED = tuple(saved for subject in SUBJECTS for saved in subject.saves)

if TYPE_CHECKING:

    class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
        """Everything durable, as of fact number `seq`. Its other fields are what subjects save."""

        format: int = FORMAT
        seq: int
        now_ms: int

        def __init__(self, **fields: object) -> None: ...

else:
    Snapshot = msgspec.defstruct(
        "Snapshot",
        [
            ("format", int, FORMAT),
            ("seq", int),
            ("now_ms", int),
            *((saved.name, saved.kind, saved.default) for saved in _SAVED),
        ],
        module=__name__,
        frozen=True,
        kw_only=True,
    )

_SHARED = {
    saved.name: (msgspec.msgpack.Decoder(get_args(saved.kind)[0]), saved.sharing)
    for saved in _SAVED
    if saved.sharing is not None
}
_decoder = msgspec.msgpack.Decoder(
    msgspec.defstruct(
        "_Undecoded",
        [(name, tuple[msgspec.Raw, ...], ()) for name in _SHARED],
        bases=(Snapshot,),
        frozen=True,
        kw_only=True,
    )
)


def decode(data: memoryview) -> Snapshot:
    """A snapshot as MessagePack. What records share is found again record by record: had all of it been decoded first,
    the room of what is given back would stay lost between what is kept. Raises msgspec.DecodeError.
    """
    found = _decoder.decode(data)
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    for name, (decoder, sharing) in _SHARED.items():
        share = sharing()
        fields[name] = tuple(share(decoder.decode(raw)) for raw in fields[name])
    return Snapshot(**fields)


def to_snapshot(state: State) -> Snapshot:
    """The State's books. Cheap per lease: records are shared, not copied."""
    return Snapshot(seq=state.seq, now_ms=state.now_ms, **{saved.name: saved.read(state) for saved in _SAVED})


def from_snapshot(snapshot: Snapshot) -> State:
    """A State with these books and fresh indexes."""
    state = State.fresh()
    state.seq, state.now_ms = snapshot.seq, snapshot.now_ms
    for saved in _SAVED:
        saved.restore(state, getattr(snapshot, saved.name))
    rebuild_indexes(state)
    return state


def state_hash(state: State) -> str:
    """SHA-256 of the books, in hexadecimal."""
    return hashlib.sha256(msgspec.msgpack.encode(to_snapshot(state), order="deterministic")).hexdigest()
