"""Whose queue is it? Nobody waits in another's queue, and a name that nobody declared escapes no limit."""

from __future__ import annotations

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import QueueSpec, TenantSpec
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import DomainError, InvalidField, QueueNotFound, TenantNotFound
from tests.core.harness import Books, node, request

ANY = c.ANY_VERSION


def pool(*tenants: TenantSpec, queues: tuple[QueueSpec, ...] = (), strict: bool | None = None) -> Books:
    books = Books(CoreConfig(strict_tenants=strict))
    books.do(c.DeclareNode(node("one", 8, agentless=True)))
    apply(books, tenants, queues)
    return books


def apply(books: Books, tenants: tuple[TenantSpec, ...] = (), queues: tuple[QueueSpec, ...] = ()) -> None:
    books.do(c.Apply(tenants=tuple((each, ANY) for each in tenants), queues=tuple((each, ANY) for each in queues)))


def ask(books: Books, tenant: str, queue: str = "") -> str:
    lease = books.allocate(request(100, tenant=tenant, queue=queue))
    return books.state.tenancy.queue_of(lease.request.tenant, lease.request.queue)


def two() -> Books:
    return pool(
        TenantSpec("red", default_queue="reds"),
        TenantSpec("blue", default_queue="blues"),
        TenantSpec("green"),
        queues=(
            QueueSpec("reds"),
            QueueSpec("reds-batch", parent="reds"),
            QueueSpec("blues"),
            QueueSpec("shared", tenants=("green", "red")),
            QueueSpec("anybody"),
        ),
    )


@pytest.mark.parametrize(
    ("tenant", "queue"),
    [("red", ""), ("red", "reds"), ("red", "reds-batch"), ("red", "shared"), ("green", "anybody"), ("green", "")],
)
def test_what_is_declared_for_a_tenant_is_its_own(tenant: str, queue: str) -> None:
    assert ask(two(), tenant, queue)


@pytest.mark.parametrize(
    ("tenant", "queue"),
    [("red", "blues"), ("blue", "reds-batch"), ("green", "blues"), ("blue", "shared"), ("blue", "anybody")],
)
def test_what_is_another_s_can_t_be_used_by_its_name(tenant: str, queue: str) -> None:
    with pytest.raises(InvalidField, match=f"tenant {tenant} may not use queue {queue}"):
        ask(two(), tenant, queue)


def test_names_that_nobody_declared_are_refused_with_what_may_be_meant() -> None:
    books = two()
    with pytest.raises(TenantNotFound, match="'rde'") as error:
        ask(books, "rde")
    assert "did you mean red?" in error.value.hint
    with pytest.raises(QueueNotFound) as no_queue:
        ask(books, "red", "red-batch")
    assert "did you mean reds-batch?" in no_queue.value.hint
    with pytest.raises(TenantNotFound) as nobody:
        ask(books, "")
    assert "--tenant" in nobody.value.hint
    assert "blue" not in nobody.value.hint


def test_where_nothing_is_declared_everybody_may_ask() -> None:
    assert ask(pool(), "whoever", "wherever") == "wherever"
    assert ask(pool(TenantSpec("red"), strict=False), "whoever") == "default"


def test_a_tenant_below_uses_what_is_declared_for_those_above_it() -> None:
    books = two()
    apply(books, (TenantSpec("red/vision"), TenantSpec("blue/vision", default_queue="blues")))
    assert ask(books, "red/vision", "reds") == "reds"
    assert ask(books, "blue/vision") == "blues"
    with pytest.raises(DomainError):
        ask(books, "red/vision", "blues")


def test_whoever_manages_a_tenant_can_t_give_those_below_it_another_s_queue() -> None:
    books = two()
    with pytest.raises(InvalidField, match="tenant red above it may not use queue blues"):
        apply(books, (TenantSpec("red/thief", default_queue="blues"),))
    apply(books, (TenantSpec("red/guest", default_queue="club"),), (QueueSpec("club", tenants=("red/guest",)),))
    assert ask(books, "red/guest") == "club"


def test_what_is_declared_or_set_holds_for_the_very_next_request() -> None:
    books = pool(TenantSpec("red"), TenantSpec("green"), queues=(QueueSpec("anybody"),), strict=False)
    assert ask(books, "red", "anybody") == ask(books, "red", "anybody") == "anybody"
    apply(books, queues=(QueueSpec("anybody", tenants=("green",)),))
    with pytest.raises(InvalidField, match="tenant red may not use queue anybody"):
        ask(books, "red", "anybody")
    apply(books, queues=(QueueSpec("anybody"),))
    assert ask(books, "red", "anybody") == "anybody"
    assert ask(books, "violet") == "default"
    books.decider.adopt(CoreConfig(strict_tenants=True))
    with pytest.raises(TenantNotFound, match="violet"):
        ask(books, "violet")
