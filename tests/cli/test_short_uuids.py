"""UUIDs in a table are short, and still tell the devices in it apart."""

from __future__ import annotations

import io
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from aliquot.cli._views import devices_table
from aliquot.cli._words import short
from tests.cli.test_cards import instance, node

ALIKE = [f"GPU-01000100-0000-4000-8000-00000000000{number}" for number in range(8)]


def test_devices_that_begin_alike_are_told_apart_in_a_table() -> None:
    devices = [replace(instance("", None, 1000), uuid=uuid, index=index) for index, uuid in enumerate(ALIKE)]
    console = Console(file=io.StringIO(), width=250, record=True)
    console.print(devices_table([node(devices)]))
    said = console.export_text()
    assert all(uuid in said for uuid in ALIKE)


def test_only_as_much_is_written_as_is_needed() -> None:
    write = short([*ALIKE[:2], "GPU-ffffffff-1111-4000-8000-000000000000", "GPU-ffffffff-1222-4000-8000-000000000000"])
    assert write("GPU-ffffffff-1222-4000-8000-000000000000") == "GPU-ffffffff-12…"
    assert write(ALIKE[0]) == ALIKE[0]
    assert short(ALIKE[:1])(ALIKE[0]) == "GPU-01000100…"


@given(st.lists(st.uuids().map(lambda uuid: f"GPU-{uuid}"), unique=True, min_size=1))
def test_what_is_written_is_never_the_same_of_two(uuids: list[str]) -> None:
    write = short(uuids)
    assert len({write(uuid) for uuid in uuids}) == len(uuids)
    assert all(sum(other.startswith(write(uuid).rstrip("…")) for other in uuids) == 1 for uuid in uuids)
