"""Whatever changes in a State, the tests that forbid it see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import Amount, QueueSpec, Quota, TenantSpec
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.timers import Due
from tests.core.frozen import contents
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare


@pytest.fixture
def state() -> State:
    """With leases that hold, leases that wait, guarantees and limits."""
    books = Books()
    books.connect(node("one", 2))
    declare(books, TenantSpec("a", Quota(Amount(1000))), QueueSpec("shared", quota=Quota(limit=Amount(3000, -1))))
    for queue in ("shared", "shared", "", ""):
        books.allocate(request(queue=queue))
    books.do(c.PostCredit("a", 7, "one"))
    return books.state


def first(values: dict[str, Any]) -> str:
    return next(iter(values))


def put_anew(values: dict[Any, Any]) -> None:
    """Move the first to the end."""
    key = next(iter(values))
    values[key] = values.pop(key)


def account(state: State) -> Any:
    return next(each for each in state.tenancy.accounts.values() if each.name == "a")


def replace_lease(state: State) -> None:
    lease_id = first(state.leases)
    state.leases[lease_id] = msgspec.structs.replace(state.leases[lease_id], arrival=99)


def hold(state: State) -> None:
    state.inventory.release(state.leases[first(state.leases)].holding[0].plan)


CHANGES: dict[str, Callable[[State], object]] = {
    "a number": lambda state: setattr(state, "seq", state.seq + 1),
    "a record": replace_lease,
    "the order of records": lambda state: put_anew(state.leases),
    "a record less": lambda state: state.leases.popitem(),
    "what ended": lambda state: state.ended.append("l"),
    "an entry": lambda state: state.ledger.entries.pop(),
    "an entry of an index": lambda state: next(iter(state.ledger.by_tenant.values())).append(state.ledger.entries[0]),
    "a mark": lambda state: state.idle.move(state.idle.at_ms),
    "a timer": lambda state: state.timers.add(state.now_ms + 10_000_000, Due.RETRY, "l"),
    "a timer of its own kind": lambda state: next(iter(state.since.values())).add(1, Due.RETRY, "l"),
    "a line": lambda state: state.lines.remove(state.lease(next(iter(state.lines.ids())))),
    "who is served": lambda state: state.lines.served.add("l"),
    "what an account holds": lambda state: account(state).by_model["A100-40"].append(1),
    "what its guarantee covers": lambda state: account(state).ranked._head.amounts.append(1),
    "a link of it": lambda state: setattr(account(state).ranked._head.nexts[0], "parts", ()),
    "what is reserved": hold,
    "what was touched": lambda state: state.touched.leases.update(l=None),
    "a version": lambda state: state.node_touched("n-one"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_seen(state: State, change: str) -> None:
    before = contents(state)
    assert contents(state) == before
    CHANGES[change](state)
    assert contents(state) != before


def test_no_attribute_is_left_out(state: State) -> None:
    """Whatever it holds, something else in its place is seen."""
    before = contents(state)
    for name in vars(state):
        kept = getattr(state, name)
        setattr(state, name, dataclasses.make_dataclass("Other", ())())
        assert contents(state) != before, name
        setattr(state, name, kept)
    assert contents(state) == before
