"""The API's document is committed, and only grows: programs of others are written against it.

After a change: `python -m tests.console.test_openapi` writes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aliquot.client import AsyncPool
from aliquot.console.app import make_api
from aliquot.console.settings import Settings

COMMITTED = Path(__file__).with_name("openapi.json")


def document() -> Any:
    """As it is now, without the version of the product."""
    made = make_api(Settings(), lambda token: AsyncPool(token=token)).openapi()
    made["info"].pop("version")
    return json.loads(json.dumps(made))


def _lost(old: Any, new: Any, path: str) -> Iterator[str]:
    """What `old` has and `new` has not. Text for people may change; what may be left out must not be demanded."""
    if isinstance(old, dict) and isinstance(new, dict):
        if old in new.get("anyOf", ()):  # as it was, or otherwise where something else was asked for
            return
        for key, value in old.items():
            if key in {"description", "title", "summary"}:
                continue
            if key not in new:
                yield f"{path}/{key}"
            elif key == "required" and "/requestBody" not in path and isinstance(value, list):
                yield from (f"{path}/required: {name} is not always there" for name in value if name not in new[key])
            else:
                yield from _lost(value, new[key], f"{path}/{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for number, value in enumerate(old):
            if isinstance(value, dict) and "name" in value:
                same = [each for each in new if each.get("name") == value["name"] and each.get("in") == value.get("in")]
                yield from _lost(value, same[0], f"{path}/{value['name']}") if same else [f"{path}/{value['name']}"]
            elif value not in new:
                yield f"{path}[{number}]: {value}"
    elif old != new:
        yield f"{path}: {old} became {new}"


def test_nothing_that_was_promised_is_taken_back() -> None:
    assert not list(_lost(json.loads(COMMITTED.read_text()), document(), ""))


def test_the_committed_document_is_up_to_date() -> None:
    assert document() == json.loads(COMMITTED.read_text()), "python -m tests.console.test_openapi writes it anew"


def test_a_loss_is_seen() -> None:
    old, new = document(), document()
    del new["paths"]["/api/v1/leases"]["get"]
    new["components"]["schemas"]["Lease"]["properties"].pop("gpu")
    new["paths"]["/api/v1/nodes"]["get"]["parameters"].pop()
    assert len(list(_lost(old, new, ""))) == 3


if __name__ == "__main__":
    COMMITTED.write_text(json.dumps(document(), indent=1, sort_keys=True) + "\n")
