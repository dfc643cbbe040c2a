"""What is said in the raw lane of CUDA's driver: one message a call.

Calls that answer nothing are sent and not waited for; those with a `request` are answered by a `Reply`. Handles are the
client's own numbers for what it makes, in one space for all kinds of things; 0 is nothing, or the session's own stream.
"""

# ruff: noqa: RUF012 - messages have empty defaults of their own each
from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, TypeAlias

import msgspec

from aliquot.remote.core.language import Decoder, Message
from aliquot.remote.core.parameters import Value

PROTOCOL = 1
"""Version of what is said. Raised when an older server could not understand a newer client."""
THINGS_MAX = 1 << 18
"""Of a session at once: allocations, modules, functions, streams and events together."""
STREAMS_MAX = 128
MODULES_MAX = 256
IMAGE_BYTES_MAX = 64 << 20
"""Of one module. The images of a session that have not become modules may be as much together."""
NAME_CHARS_MAX = 4096
"""Of a function or variable: mangled names are long."""
GRID_MAX = (1 << 31) - 1
NONE = 0
Request: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
"""The client's number of a question, which its answer has."""


class Kind(IntEnum):
    """The first byte of a frame that is no message."""

    WRITE = 4
    IMAGE = 11
    CHUNK = 67


class _Said(Message, frozen=True):
    pass


class Open(_Said, frozen=True):
    """The first message of a session."""

    protocol: int


class Allocate(_Said, frozen=True):
    """Memory of so many bytes. Answered."""

    request: Request
    handle: int
    size: int


class Drop(_Said, frozen=True):
    """The client holds this no more: memory, a module with its functions, a stream, an event. Done also while a fault
    stops everything else; of a handle that names nothing, nothing is done.
    """

    handle: int


class Read(_Said, frozen=True):
    """Send bytes of an allocation, once what the stream was told before is done. Comes in chunks, then a reply."""

    request: Request
    handle: int
    offset: int
    size: int
    stream: int = NONE


class Copy(_Said, frozen=True):
    """Bytes from one allocation into another, or within one where they don't overlap."""

    to: int
    to_offset: int
    source: int
    source_offset: int
    size: int
    stream: int = NONE


class Fill(_Said, frozen=True):
    """`count` times a value of `unit` bytes: 1, 2 or 4."""

    handle: int
    offset: int
    value: int
    unit: int
    count: int
    stream: int = NONE


class Load(_Said, frozen=True):
    """Make a module of the image that was sent under this handle: PTX, a cubin or a fat binary. Answered."""

    request: Request
    handle: int


class Function(_Said, frozen=True):
    """A kernel of a module, and what its parameters are. Answered."""

    request: Request
    handle: int
    module: int
    name: str
    parameters: list[str]


class Variable(_Said, frozen=True):
    """A module's global variable as memory, which goes with its module. Answered with its size."""

    request: Request
    handle: int
    module: int
    name: str


class Launch(_Said, frozen=True):
    """Run a kernel."""

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    values: list[Value]
    shared_bytes: int = 0
    stream: int = NONE


class Stream(_Said, frozen=True):
    """Make a stream. A lower number is a higher priority."""

    handle: int
    priority: int = 0


class Event(_Said, frozen=True):
    """Make an event."""

    handle: int
    timed: bool = True


class Record(_Said, frozen=True):
    """The event is when what the stream was told so far is done."""

    event: int
    stream: int = NONE


class Await(_Said, frozen=True):
    """What the stream is told from now on waits for the event."""

    stream: int
    event: int


class Synchronize(_Said, frozen=True):
    """Answer when a stream's or an event's work is done; of 0: the whole session's."""

    request: Request
    handle: int = NONE


class Query(_Said, frozen=True):
    """Answer at once whether a stream's or an event's work is done: 1 or 0."""

    request: Request
    handle: int = NONE


class Elapsed(_Said, frozen=True):
    """Answer with the nanoseconds from one recorded event to another."""

    request: Request
    start: int
    end: int


class Statistics(_Said, frozen=True):
    """Answer with the session's and the part's numbers."""

    request: Request


class Attribute(_Said, frozen=True):
    """Answer with an attribute of the device, by the number that CUDA has for it."""

    request: Request
    attribute: int


class Resume(_Said, frozen=True):
    """The client's program has been told of a fault; what follows is meant to be done."""

    fault: int


class Welcome(_Said, frozen=True):
    """The session is open."""

    protocol: int
    name: str
    """Of the device."""
    device_uuid: str
    memory_bytes: int
    """Of the part."""
    capability: tuple[int, int]
    driver_version: int
    """As CUDA has it: 12040 for 12.4."""
    attributes: dict[str, int] = {}


class Refused(_Said, frozen=True):
    """The session is not opened, and why."""

    reason: str
    protocol: int


class Reply(_Said, frozen=True):
    """The answer to a request."""

    request: Request
    fault: int = 0
    """Not done, because of this fault; it was sent before."""
    value: int = 0
    numbers: dict[str, int] = {}


class Fault(_Said, frozen=True):
    """A call failed. Nothing after it is done until the client resumes."""

    fault: int
    reason: str
    """`out_of_memory`, `handle`, `malformed`, or `cuda`."""
    message: str
    call: str
    code: int = 0
    """CUDA's, where the driver refused; else 0."""
    asked_bytes: int = 0
    used_bytes: int = 0
    limit_bytes: int = 0


WRITE_HEADER = struct.Struct("<BIIQ")
"""Of `WRITE`: kind, handle, stream, offset; the bytes follow."""
CHUNK_HEADER = struct.Struct("<BIQ")
"""Of `CHUNK`: kind, request, offset among the bytes asked for; the bytes follow."""
IMAGE_HEADER = struct.Struct("<BI")
"""Of `IMAGE`: kind, handle; the image's next bytes follow."""

decode = Decoder(_Said)
