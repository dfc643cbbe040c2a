"""How a commit group looks in a journal: versioned, checksummed, and chained to the record before it.

The payload is the MessagePack list of the group's facts. Facts only ever get new fields with defaults, and new
kinds of fact, so an older journal always decodes; what a newer version wrote is refused by `VERSION` or by the
unknown kind, never guessed at. The digest covers everything but itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from types import GenericAlias

import msgspec

from aliquot.coordinator.core.evolve import ANY_FACT
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.errors import JournalCorrupt, JournalTooNew
from aliquot.coordinator.writing.journal.base import Group

VERSION = 1

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(GenericAlias(tuple, (ANY_FACT, ...)))


@dataclass(frozen=True, slots=True)
class Record:
    """One commit group as it is stored."""

    version: int
    first_seq: int
    last_seq: int
    previous: bytes
    payload: bytes
    digest: bytes


def digest_of(version: int, first_seq: int, last_seq: int, previous: bytes, payload: bytes) -> bytes:
    """SHA-256 over everything a record says."""
    head = b"%d:%d:%d:" % (version, first_seq, last_seq)
    return hashlib.sha256(b"".join((head, previous, payload))).digest()


def encode(group: Group, previous: bytes) -> Record:
    """The record of a group that follows the one with digest `previous`."""
    payload = _encode(group.facts)
    first, last = group.first_seq, group.last_seq
    return Record(VERSION, first, last, previous, payload, digest_of(VERSION, first, last, previous, payload))


def is_intact(record: Record) -> bool:
    """Whether the record is what was written, as far as its own digest can tell."""
    return record.digest == digest_of(
        record.version, record.first_seq, record.last_seq, record.previous, record.payload
    )


def decode(record: Record) -> Group:
    """The group of an intact record. Raises JournalTooNew or JournalCorrupt."""
    if record.version > VERSION:
        raise JournalTooNew(
            f"fact {record.first_seq} was written in record format {record.version}; "
            f"this version reads up to {VERSION}",
            hint="start the version that wrote this journal, or a newer one",
        )
    try:
        facts: tuple[Fact, ...] = _decoder.decode(record.payload)
    except msgspec.ValidationError as error:
        raise JournalTooNew(
            f"facts {record.first_seq} to {record.last_seq} hold what this version does not know: {error}",
            hint="start the version that wrote this journal, or a newer one",
        ) from error
    except msgspec.DecodeError as error:
        raise JournalCorrupt(
            f"facts {record.first_seq} to {record.last_seq} can't be read although their checksum is right: {error}",
            hint="keep the journal as it is and report this: it is a defect",
        ) from error
    if len(facts) != record.last_seq - record.first_seq + 1:
        raise JournalCorrupt(
            f"the record of facts {record.first_seq} to {record.last_seq} holds {len(facts)} facts",
            hint="keep the journal as it is and report this: it is a defect",
        )
    return Group(record.first_seq, facts)
