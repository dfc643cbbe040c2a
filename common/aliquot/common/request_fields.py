"""What a request may have beside its GPU text, once for everybody who lets people write one.

The list is a file, because the page of the console reads it as well. From it follow the options of the command line,
the annotations of pods, and what the page shows to be typed elsewhere. The SDK's `Request` and the
contract declare the same fields with their types; a test compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec


class RequestField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One field of a request. Where something is empty, it can't be given there."""

    name: str
    """In the contract, the SDK and REST."""
    help: str
    """For the command line; `{words}` are those that its kind has."""
    option: str
    kind: str = "text"
    """text, flag, integer, count, seconds, bytes, milli, pairs, names, or words: tier, topology, serve, signal."""
    short: str = ""
    metavar: str = ""
    annotation: str = ""
    """Of pods."""


REQUEST_FIELDS: Final = msgspec.json.decode(
    Path(__file__).with_name("request_fields.json").read_bytes(), type=tuple[RequestField, ...]
)
