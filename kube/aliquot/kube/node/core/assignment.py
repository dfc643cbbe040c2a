"""What a pod was given, as its annotations say: written with the binding, by who placed it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aliquot.common.errors import AliquotError
from aliquot.kube.core import names
from aliquot.kube.core.pods import Assignment

LEASE_ANNOTATION = names.LEASE_ID
ASSIGNMENT_ANNOTATION = names.ASSIGNMENT
MAX_BYTES = 64 << 10


class BadAssignment(AliquotError):
    """A pod's assignment can't be read."""


def read_assignment(annotations: Mapping[str, str]) -> Assignment | None:
    """What the annotations of a pod say; None where it was given nothing. Raises `BadAssignment`."""
    text = annotations.get(ASSIGNMENT_ANNOTATION, "")
    lease_id = annotations.get(LEASE_ANNOTATION, "")
    if not text and not lease_id:
        return None
    try:
        if len(text) > MAX_BYTES:
            raise BadAssignment(f"{ASSIGNMENT_ANNOTATION} has {len(text)} characters; at most {MAX_BYTES} are read")
        found = msgspec.json.decode(text, type=Assignment)
    except msgspec.DecodeError as error:
        raise BadAssignment(f"{ASSIGNMENT_ANNOTATION} can't be read: {error}") from error
    if not found.lease or not found.slices or found.member < 0:
        raise BadAssignment(f"{ASSIGNMENT_ANNOTATION} names no lease, or no slice of it")
    if lease_id and lease_id != found.lease:
        raise BadAssignment(f"{LEASE_ANNOTATION} names {lease_id}, {ASSIGNMENT_ANNOTATION} {found.lease}")
    return found
