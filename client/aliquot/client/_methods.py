"""The calls of the contract as data, so that one transport and one retry rule serve them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from aliquot.v1 import leases_pb2, pool_pb2

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Answer]):
    """One call: its path on the wire and the types that go in and out."""

    path: str
    request: type[Request]
    answer: type[Answer]

    @property
    def name(self) -> str:
        """The call's own name, for messages."""
        return self.path.rpartition("/")[2]


def methods_of(file: FileDescriptor, service: str) -> Mapping[str, Method[Any, Any]]:
    """The calls of a service by name, as the contract declares them."""
    described = file.services_by_name[service]
    return {
        each.name: Method(
            f"/{described.full_name}/{each.name}", GetMessageClass(each.input_type), GetMessageClass(each.output_type)
        )
        for each in described.methods
    }


LEASES = methods_of(leases_pb2.DESCRIPTOR, "LeaseService")
POOL = methods_of(pool_pb2.DESCRIPTOR, "PoolService")
