"""What the contract and the journal's facts look like, as plain data that can be kept and compared.

    python -m tests.compatibility              # how today's shapes differ from the kept ones
    python -m tests.compatibility --rewrite    # keep today's: once a release, or refused where something broke

The kept shapes are those of the last release. What a release has is for ever: agents and launchers of the version
before speak to this one, and journals are read by every later version. New things may come at any time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from aliquot.coordinator.core.evolve import ANY_FACT
from aliquot.coordinator.core.evolve.snapshot import Snapshot
from aliquot.v1 import admin_pb2, agent_pb2, leases_pb2, local_pb2, pool_pb2, supply_pb2, types_pb2

SAVED = Path(__file__).with_name("saved")
Shape = dict[str, dict[str, Any]]

_FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR for module in (admin_pb2, agent_pb2, supply_pb2, leases_pb2, local_pb2, pool_pb2, types_pb2)
)
_KINDS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def wire() -> Shape:
    """Messages by field number, enums by number, methods by name."""
    shape: Shape = {}
    for file in _FILES:
        for message in file.message_types_by_name.values():
            _message(message, shape)
        for enum in file.enum_types_by_name.values():
            _enum(enum, shape)
        for service in file.services_by_name.values():
            shape[f"service {service.full_name}"] = {
                method.name: [
                    method.input_type.full_name,
                    method.output_type.full_name,
                    "stream" if method.client_streaming else "one",
                    "stream" if method.server_streaming else "one",
                ]
                for method in service.methods
            }
    return shape


def _message(message: Descriptor, shape: Shape) -> None:
    shape[f"message {message.full_name}"] = {str(field.number): _field(field) for field in message.fields}
    for nested in message.nested_types:
        _message(nested, shape)
    for enum in message.enum_types:
        _enum(enum, shape)


def _enum(enum: EnumDescriptor, shape: Shape) -> None:
    shape[f"enum {enum.full_name}"] = {str(value.number): value.name for value in enum.values}


def _field(field: FieldDescriptor) -> list[str]:
    named = field.message_type or field.enum_type
    oneof = field.containing_oneof
    return [
        field.name,
        named.full_name if named is not None else _KINDS[field.type],
        "repeated" if field.is_repeated else "one",
        f"of {oneof.name}" if oneof is not None else "",
    ]


def facts() -> Shape:
    """Every fact, snapshot and what they are made of: fields in the order in which arrays hold them."""
    return _structs([ANY_FACT])


def snapshot() -> Shape:
    """The books as a snapshot holds them."""
    return _structs([Snapshot])


def _structs(roots: list[Any]) -> Shape:
    shape: Shape = {}
    waiting = [msgspec.inspect.type_info(root) for root in roots]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, msgspec.inspect.StructType):
            name = f"fact {kind.tag}" if kind.tag is not None else f"struct {kind.cls.__name__}"
            if name in shape:
                continue
            shape[name] = {
                field.encode_name: [
                    position if kind.array_like else "by name",
                    _said(field.type),
                    "required" if field.required else "optional",
                ]
                for position, field in enumerate(kind.fields)
            }
            waiting += [field.type for field in kind.fields]
        elif isinstance(kind, msgspec.inspect.EnumType):
            shape[f"enum {kind.cls.__name__}"] = {str(member.value): member.name for member in kind.cls}
        else:
            waiting += _within(kind)
    return shape


def _within(kind: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    """The types that a container or a union is made of."""
    match kind:
        case msgspec.inspect.UnionType():
            return list(kind.types)
        case msgspec.inspect.TupleType():
            return list(kind.item_types)
        case msgspec.inspect.CollectionType():
            return [kind.item_type]
        case msgspec.inspect.DictType():
            return [kind.key_type, kind.value_type]
        case _:
            return []


def _said(kind: msgspec.inspect.Type) -> str:
    """A type in words that stay the same."""
    match kind:
        case msgspec.inspect.StructType():
            return str(kind.cls.__name__)
        case msgspec.inspect.EnumType():
            return str(kind.cls.__name__)
        case _:
            within = [_said(part) for part in _within(kind)]
            name = type(kind).__name__.removesuffix("Type").lower()
            return f"{name}[{', '.join(within)}]" if within else name


def saved(name: str) -> Shape:
    """The kept shape `wire`, `facts` or `snapshot`."""
    shape: Shape = json.loads((SAVED / f"{name}.json").read_text())
    return shape


def keep(name: str, shape: Shape) -> None:
    """Keep it, one member a line."""
    lines = []
    for owner in sorted(shape):
        members = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in shape[owner].items())
        lines.append(f"  {json.dumps(owner)}: {{\n{members}\n  }}" if members else f"  {json.dumps(owner)}: {{}}")
    (SAVED / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def broken(name: str, old: Shape, new: Shape) -> list[str]:
    """What was there and is gone or otherwise, and what is new in a way that older data does not have."""
    found = []
    for owner, members in old.items():
        if owner not in new:
            found.append(f"{owner} is gone")
            continue
        for key, value in members.items():
            now = new[owner].get(key)
            if now is None:
                found.append(f"{owner}: {key} ({_words(value)}) is gone")
            elif now != value and not _only_more_lenient(name, value, now):
                found.append(f"{owner}: {key} was {_words(value)} and is now {_words(now)}")
        if name != "wire" and not owner.startswith("enum "):
            found += [
                f"{owner}: {key} is new and required, but older journals don't have it: give it a default"
                for key, value in new[owner].items()
                if key not in members and value[2] == "required"
            ]
    return found


def _only_more_lenient(name: str, old: Any, new: Any) -> bool:
    """A field of a fact that got a default is read as before."""
    return name != "wire" and isinstance(old, list) and old[:2] == new[:2] and new[2] == "optional"


def added(old: Shape, new: Shape) -> list[str]:
    """What was not there."""
    return [f"{owner}: {key}" for owner in new for key in new[owner] if key not in old.get(owner, {})]


def _words(value: Any) -> str:
    return " ".join(str(part) for part in value if part != "") if isinstance(value, list) else str(value)
