"""Every field of every message of the contract is mapped by a table, or carried by hand for a reason given here."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import aliquot.v1
from aliquot.common.fields import Reader, Table
from tests.contract import test_fields as tables  # imports all modules that declare tables

ROOT = Path(__file__).parents[2]
READ_BY = ("agent", "client", "common", "console", "coordinator", "kube", "remote")
_AGENTS = "the agents' stream: bounded, coalesced and compared field by field, in one codec on each side"
_LOCAL = "the node's own socket, whose two ends are in the agent and in the SDK's `local`"
_REMOTE = "frames of the remote engines, which have a codec of their own"
_LOOKED_UP = "made from what is looked up one by one, of no value that has these attributes"
_ONE_OF = "the lease or the error, each written by its own table"
BY_HAND = {
    "AllocateResult": _ONE_OF,
    "ReleaseResult": _ONE_OF,
    "Bookmark": "it says nothing",
    "CopyRate": _AGENTS,
    "ExpectedSeries": "a forecast begins when it is taken, which no message says",
    "FleetNode": "columns, which are encoded once for all who look",
    "ForecastHour": _LOOKED_UP,
    "ForecastSeries": _LOOKED_UP,
    "IdleWarning": _LOOKED_UP,
    "MemberPlace": "names are looked up, and bounded before",
    "ModelSet": "a list within a list",
    "PoolItem": "a declaration with the version that it replaces",
    "QueueItem": "a declaration with the version that it replaces",
    "TenantItem": "a declaration with the version that it replaces",
    "UnknownSlice": "what an agent says that nobody can check: each text is cut",
    "WindowsNow": _LOOKED_UP,
}
"""Messages without a table, and why; beside those of whole files, and what one call takes and answers."""
FILES_BY_HAND = {"agent_pb2": _AGENTS, "local_pb2": _LOCAL, "remote_pb2": _REMOTE}


def messages() -> Iterator[tuple[str, Any]]:
    """All of them, with the module that declares each."""
    for module in pkgutil.iter_modules(aliquot.v1.__path__):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(f"aliquot.v1.{module.name}").DESCRIPTOR
            for message in file.message_types_by_name.values():
                yield module.name, message


def of_calls() -> set[str]:
    """What a call takes and answers: its service reads and fills it, argument by argument."""
    methods = (
        method
        for module in pkgutil.iter_modules(aliquot.v1.__path__)
        if module.name.endswith("_pb2")
        for service in importlib.import_module(f"aliquot.v1.{module.name}").DESCRIPTOR.services_by_name.values()
        for method in service.methods
    )
    return {kind.name for method in methods for kind in (method.input_type, method.output_type)}


@cache
def mapped() -> frozenset[str]:
    """Names of messages that have a table: told by a process of its own, since tests and calls make tables, too."""
    told = "from tests.contract.test_every_message import compiled; print(*compiled())"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    return frozenset(done.stdout.split())


def compiled() -> frozenset[str]:
    """Those of the product; tables of messages within others are made when the outer one is compiled."""
    for table in list(tables.TABLES):
        _ = table.read if isinstance(table, Reader) else table.write  # type: ignore[attr-defined]
    return frozenset(table.message_type.DESCRIPTOR.name for table in Table.all)


@cache
def words() -> frozenset[str]:
    """All names and strings of the product's own code."""
    files = (file for root in READ_BY for file in (ROOT / root).rglob("*.py") if "_sync" not in file.parts)
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text()))


@pytest.mark.parametrize(("module", "message"), [pytest.param(*each, id=each[1].name) for each in messages()])
def test_a_message_has_a_table_or_a_reason_and_no_field_is_forgotten(module: str, message: Any) -> None:
    if message.name in mapped():
        return  # whose fields `test_fields` goes through, one by one
    reason = (
        BY_HAND.get(message.name) or FILES_BY_HAND.get(module) or ("its call" if message.name in of_calls() else "")
    )
    assert reason, f"{message.name} has no table: declare one, or say here why it is carried by hand"
    forgotten = [field.name for field in message.fields if field.name not in words()]
    assert not forgotten, f"{message.name}: nobody reads or writes {', '.join(forgotten)}"


def test_no_reason_is_out_of_date() -> None:
    assert sorted(set(BY_HAND) & mapped()) == []
    assert sorted(set(BY_HAND) - {message.name for _, message in messages()}) == []


@pytest.mark.parametrize("table", tables.TABLES, ids=str)
def test_what_a_table_leaves_out_has_a_reason(table: Table[Any, Any]) -> None:
    assert all(table.left_out.values())
