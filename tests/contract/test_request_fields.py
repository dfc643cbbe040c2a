"""The list of what a request may have, beside the SDK's `Request` and the contract."""

from __future__ import annotations

import dataclasses
from typing import get_type_hints

import pytest

from aliquot.client import Request
from aliquot.common.request_fields import REQUEST_FIELDS, RequestField
from aliquot.v1 import types_pb2

ELSEWHERE = {"gpu": "it is the text itself", "detached": "follows from the command, or from how it is asked for"}


def test_people_can_give_each_field_of_a_request() -> None:
    listed = [field.name for field in REQUEST_FIELDS]
    declared = {field.name for field in dataclasses.fields(Request)} - set(ELSEWHERE)
    assert sorted(listed) == sorted(declared)
    assert declared <= {field.name for field in types_pb2.LeaseRequest.DESCRIPTOR.fields}


@pytest.mark.parametrize("field", REQUEST_FIELDS, ids=lambda field: field.name)
def test_kinds_are_those_of_the_types(field: RequestField) -> None:
    hint = get_type_hints(Request)[field.name]
    kinds = {bool: {"flag"}, int: {"integer", "count", "seconds", "bytes", "milli"}, str: {"text", "signal"}}
    word = getattr(hint, "__name__", "").lower()
    assert field.kind in kinds.get(hint, {word, "pairs", "names"})
    assert (field.kind == "seconds") == field.name.endswith("_s")
