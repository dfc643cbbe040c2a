"""The tables between values and the contract: every field of a table's message is mapped, or left out with a reason."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import pkgutil
from typing import Any

import msgspec
import pytest
from google.protobuf.message import Message

import aliquot.client
import aliquot.coordinator.wire
from aliquot.client._errors import InvalidRequest
from aliquot.client._messages import write
from aliquot.client.admin import Amount, Quota
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Reader, Table, Writer
from aliquot.v1 import admin_pb2, supply_pb2, types_pb2

for package in (aliquot.client, aliquot.coordinator.wire):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
importlib.import_module("aliquot.agent.wire")
TABLES = list(Table.all)
READABLE: dict[type[Message], Message] = {
    admin_pb2.QuotaWindow: admin_pb2.QuotaWindow(when="weekdays"),
    supply_pb2.NodeShape: supply_pb2.NodeShape(name="a", model="A100-80", devices=1, nodes_max=1),
}
"""Messages that mean nothing while they are empty, with the least that can be read."""


def set_alone(message: Message, field: Any) -> None:
    """Give one field a value that is not its default."""
    target: Any = message
    samples = {field.CPPTYPE_STRING: "9", field.CPPTYPE_BOOL: True, field.CPPTYPE_ENUM: 2}
    value = b"9" if field.type == field.TYPE_BYTES else samples.get(field.cpp_type, 6)
    if field.message_type is None:
        if field.is_repeated:
            getattr(target, field.name).append(value)
        else:
            setattr(target, field.name, value)
    elif field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        getattr(target, field.name)["k"] = "v" if inner.cpp_type == inner.CPPTYPE_STRING else 3
    else:
        slot = getattr(target, field.name)
        within = slot.add() if field.is_repeated else slot
        if not field.is_repeated:
            slot.SetInParent()
        for each in within.DESCRIPTOR.fields:
            if each.message_type is None and (each.containing_oneof is None or len(each.containing_oneof.fields) == 1):
                set_alone(within, each)


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_each_field_is_mapped_or_left_out(table: Table[Any, Any]) -> None:
    if isinstance(table, Writer):
        assert callable(table.write)  # which raises where a field has neither an attribute nor a rule
        return
    assert isinstance(table, Reader)
    unset = read(table, READABLE.get(table.message_type, table.message_type()))
    for name, field in table.fields.items():
        message = table.message_type()
        message.CopyFrom(READABLE.get(table.message_type, message))
        set_alone(message, field)
        seen = read(table, message) != unset
        assert seen or table.rest, f"{table}: {name} is not read, and not left out"


def read(table: Reader[Any, Any], message: Message) -> object:
    """A value, or why there is none."""
    try:
        return table.read(message, "it")
    except InvalidFieldError as error:
        return str(error)


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Shape(msgspec.Struct, frozen=True):
    action: Colour = Colour.RED
    for_ms: int = 5000
    after: int = 7


def test_a_text_that_is_no_word_is_refused_with_its_path_and_what_there_is() -> None:
    table = Reader(admin_pb2.OnOverLimit, Shape, left_out={"min_tier": "not of a shape"})
    with pytest.raises(InvalidFieldError, match=r"queues\[2\]\.idle\.action: 'green' is none of: red, blue"):
        table.read(admin_pb2.OnOverLimit(action="green"), "queues[2].idle")


def test_what_is_unset_is_as_the_value_has_it_by_itself_and_units_follow_from_names() -> None:
    table = Reader(admin_pb2.OnOverLimit, Shape, left_out={"min_tier": "not of a shape"})
    assert table.read(admin_pb2.OnOverLimit()) == Shape()
    assert table.read(admin_pb2.OnOverLimit(action="blue", for_s=2)) == Shape(Colour.BLUE, 2000)
    written = Writer(admin_pb2.OnOverLimit, Shape, left_out={"min_tier": "not of a shape"}).message(Shape())
    assert written == admin_pb2.OnOverLimit(action="red", for_s=5, after=7)


def test_a_field_without_attribute_or_rule_is_a_mistake_of_the_table() -> None:
    with pytest.raises(TypeError, match="OnOverLimit of Shape: Shape has no min_tier"):
        _ = Writer(admin_pb2.OnOverLimit, Shape).write
    with pytest.raises(TypeError, match="has no fields colour"):
        _ = Writer(admin_pb2.OnOverLimit, Shape, {"colour": "action"}, rest="the rest").write


def test_what_a_field_can_not_carry_is_refused_with_the_path_to_it() -> None:
    with pytest.raises(InvalidRequest, match=r"^limit\.share_milli can't be sent"):
        write(Quota(limit=Amount(share_milli=-5)), admin_pb2.Quota())


def test_the_path_is_told_whatever_other_tables_of_these_names_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"^limit\.share_milli can't be sent"):
        write(Quota(limit=Amount(share_milli=-5)), admin_pb2.Quota())
    other = dataclasses.make_dataclass("Amount", [("memory_bytes", int)])
    assert (
        Writer(admin_pb2.Amount, other, {"memory_bytes": "memory_bytes"}, rest="no").message(other(3)).memory_bytes == 3
    )
    with pytest.raises(InvalidRequest, match=r"^limit\.share_milli can't be sent"):
        write(Quota(limit=Amount(share_milli=-5)), admin_pb2.Quota())


@dataclasses.dataclass(frozen=True)
class Part:
    share_milli: int
    numa_node: int = -1


@dataclasses.dataclass(frozen=True)
class Whole:
    part: Part
    uuid: str


def test_an_unknown_number_is_absent_and_parts_are_looked_into() -> None:
    table = Writer(
        types_pb2.Device,
        Whole,
        {"uuid": "uuid", "numa_node": "part.numa_node", "leased_share_milli": "part.share_milli"},
        rest="not of this whole",
    )
    assert table.message(Whole(Part(3), "a")) == types_pb2.Device(uuid="a", leased_share_milli=3)
    assert table.message(Whole(Part(0, 0), "a")) == types_pb2.Device(uuid="a", numa_node=0)
