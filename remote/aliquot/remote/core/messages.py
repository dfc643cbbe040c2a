"""What is said beside the packed stream: small messages, rarely."""

# ruff: noqa: RUF012 - messages have empty defaults of their own each
from __future__ import annotations

import struct
from enum import IntEnum
from typing import TypeAlias

from aliquot.remote.core.language import Decoder, Message, Part


class Kind(IntEnum):
    """The first byte of a frame that is no message."""

    OPERATORS = 2
    DATA = 5
    CHUNK = 67


class _Said(Message, frozen=True):
    pass


# ------------------------------------------------------------------------------------------ arguments of a template


class TensorArg(Part, tag="t", frozen=True):
    """A tensor: its allocation's handle stands in the stream, then its offset in elements where `shifted`."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    shifted: bool = False


class FloatArg(Part, tag="f", frozen=True):
    """A float that stands in the stream."""


class IntArg(Part, tag="i", frozen=True):
    """A whole number that stands in the stream."""


class ConstArg(Part, tag="c", frozen=True):
    """A value of the template itself."""

    value: bool | int | float | str | None


class NumbersArg(Part, tag="n", frozen=True):
    """Sizes, dimensions, factors: a list of values of the template itself."""

    values: list[bool | int | float]


class ComplexArg(Part, tag="x", frozen=True):
    """A complex number of the template itself."""

    real: float
    imaginary: float


class NamedArg(Part, tag="w", frozen=True):
    """One of PyTorch's named values: a type, a layout or a memory format."""

    kind: str
    name: str


class DeviceArg(Part, tag="d", frozen=True):
    """The device that the session's tensors are on, whatever it is called there."""


class ListArg(Part, tag="l", frozen=True):
    """A list of tensors or scalars."""

    items: list[Arg]


Arg: TypeAlias = TensorArg | FloatArg | IntArg | ConstArg | NumbersArg | ComplexArg | NamedArg | DeviceArg | ListArg


class Result(Part, frozen=True):
    """A new tensor that an operator makes, as predicted."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Template(_Said, frozen=True):
    """An operator with everything that is the same whenever it comes."""

    number: int
    operator: str
    args: list[Arg]
    kwargs: dict[str, Arg] = {}
    results: list[Result | None] = []
    """One for each tensor that is returned; None for one that is not new: an argument written in place."""


# ------------------------------------------------------------------------------------------------- client to server


class Hello(_Said, frozen=True):
    """The first message of a session."""

    protocol: int
    torch: str
    operators: str
    """Digest of the schemas of the operators that this client may name (see `Welcome.operators`)."""
    tenant: str = ""


class Call(_Said, frozen=True):
    """One operator whose results can't be predicted: the server answers with what they are."""

    request: int
    site: int
    template: Template
    words: list[int]
    handles: list[int]
    """For as many new tensors as the operator may return."""


class Fetch(_Said, frozen=True):
    """Send the elements of a view, in order."""

    request: int
    site: int
    handle: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Resume(_Said, frozen=True):
    """The client's program has been told of a fault; what follows is meant to be done."""

    fault: int


class Mark(_Said, frozen=True):
    """Answer when everything before has been done; `statistics` also with the session's numbers.

    `reset_peak`: the most that was held is counted from now on. `timed`: so is the time within operators.
    """

    request: int
    statistics: bool = False
    reset_peak: bool = False
    timed: bool = False


class Seed(_Said, frozen=True):
    """Seed the session's generator."""

    seed: int


class Random(_Said, frozen=True):
    """Answer with the state of the session's generator (`state` is None), or set it."""

    request: int
    state: bytes | None = None


class Record(_Said, frozen=True):
    """Keep `words` as a captured step. `number` may be used again; empty words forget it."""

    request: int
    number: int
    words: bytes
    width: int
    kept: list[int]
    """Handles that the step makes and that live on behind it."""


class Hashed(_Said, frozen=True):
    """Fill allocations with content that was sent before, by any session of this tenant."""

    request: int
    items: list[tuple[int, bytes]]
    """Handle of a contiguous allocation, and SHA-256 of its bytes."""


class Blob(_Said, frozen=True):
    """What was just sent to this allocation is worth keeping under its content's SHA-256."""

    handle: int
    digest: bytes


class Node(Part, frozen=True):
    """One call of a graph. Arguments name earlier values by number."""

    operator: str
    args: list[GraphArg]
    kwargs: dict[str, GraphArg] = {}


class ValueArg(Part, tag="v", frozen=True):
    """A value of the graph: its inputs come first, then what each node makes."""

    number: int
    item: int = -1
    """Which of several results of a node."""


class ValuesArg(Part, tag="l", frozen=True):
    """A list of values of a graph."""

    items: list[GraphArg]


GraphArg: TypeAlias = ValueArg | ValuesArg | ConstArg | NumbersArg | ComplexArg | NamedArg | DeviceArg


class Graph(_Said, frozen=True):
    """A function as an explicit list of calls. It becomes the operator `graph::NUMBER`."""

    number: int
    inputs: int
    nodes: list[Node]
    outputs: list[ValueArg]


# ------------------------------------------------------------------------------------------------- server to client


class Welcome(_Said, frozen=True):
    """The session is open."""

    protocol: int
    torch: str
    device: str
    """What the session's tensors are on there: `cpu` or `cuda`."""
    memory_bytes: int
    operators: str
    seed: int = 0


class Refused(_Said, frozen=True):
    """The session is not opened, and why."""

    reason: str
    protocol: int
    torch: str


class Value(Part, frozen=True):
    """What a call returned in one place: a new tensor, or a plain value."""

    handle: int | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    plain: bool | int | float | str | None = None


class Reply(_Said, frozen=True):
    """The answer to a request."""

    request: int
    values: list[Value] = []
    size_bytes: int = 0
    """Of what comes in chunks before this."""
    fault: int = 0
    """Not done, because of this fault; it was sent before."""
    missing: list[int] = []
    """Of a request by hashes: places in its list whose content must be sent."""
    numbers: dict[str, int] = {}


class Fault(_Said, frozen=True):
    """An operator failed. Nothing after it is done until the client resumes: memory is as it was at that moment."""

    fault: int
    reason: str
    """`out_of_memory`, `index`, `value`, `type`, `linalg`, `not_implemented`, else `operator`; of what a
    client itself did wrong `not_allowed`, `dropped`, `malformed`,
    `mispredicted` (the same operator will work when it is called again)."""
    message: str
    operator: str = ""
    site: int = 0
    asked_bytes: int = 0
    used_bytes: int = 0
    limit_bytes: int = 0


DATA_HEADER = struct.Struct("<BIQ")
"""Of `DATA`: kind, handle, offset in bytes; of `CHUNK`: kind, request, offset in bytes."""

decode = Decoder(_Said)
