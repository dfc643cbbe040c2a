"""What the last release could say and read, this version can."""

from __future__ import annotations

import copy

import pytest

from tests.compatibility import shapes
from tests.compatibility.__main__ import NOW

HINT = (
    "older agents, launchers or journals depend on this. Put it back as it was; a new thing gets a new number or name. "
    "`python -m tests.compatibility` lists all differences, and with --rewrite keeps additions at a release."
)


@pytest.mark.parametrize("name", sorted(NOW))
def test_nothing_that_was_released_is_gone_or_otherwise(name: str) -> None:
    found = shapes.broken(name, shapes.saved(name), NOW[name]())
    assert not found, "\n".join([*found, HINT])


def test_a_field_that_is_renumbered_retyped_or_removed_is_found() -> None:
    old = shapes.wire()
    changed = copy.deepcopy(old)
    fields = changed["message aliquot.v1.Hello"]
    fields["99"] = fields.pop("1")
    fields["2"][1] = "string"
    del changed["service aliquot.v1.LeaseService"]["Release"]
    changed["enum aliquot.v1.Tier"]["1"] = "TIER_OTHER"
    found = "\n".join(shapes.broken("wire", old, changed))
    assert "message aliquot.v1.Hello: 1 (" in found
    assert "message aliquot.v1.Hello: 2 was" in found
    assert "Release" in found
    assert "TIER_OTHER" in found
    assert shapes.added(old, changed) == ["message aliquot.v1.Hello: 99"]


def test_a_fact_may_get_an_optional_field_and_no_required_one_and_keeps_its_order() -> None:
    old = shapes.facts()
    fact = "fact granted"
    changed = copy.deepcopy(old)
    changed[fact]["more"] = [len(changed[fact]), "int", "optional"]
    assert not shapes.broken("facts", old, changed)
    changed[fact]["more"][2] = "required"
    assert "default" in shapes.broken("facts", old, changed)[0]
    swapped = copy.deepcopy(old)
    first, second = list(swapped[fact])[:2]
    swapped[fact][first][0], swapped[fact][second][0] = swapped[fact][second][0], swapped[fact][first][0]
    assert len(shapes.broken("facts", old, swapped)) == 2
