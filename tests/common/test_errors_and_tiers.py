"""One error tree with stable reasons; tiers are ordered and numbered as in the contract."""

from __future__ import annotations

import pickle

import pytest

from aliquot.common import errors
from aliquot.common.errors import AliquotError, InvalidFieldError
from aliquot.common.tiers import Tier, parse_tier


def test_an_error_says_what_is_wrong_and_what_to_do() -> None:
    error = errors.ConfigError("port 0", hint="choose a port")
    assert str(error) == error.message == "port 0"
    assert error.explain() == "port 0\n  hint: choose a port"
    assert AliquotError("x").explain() == "x"
    assert (AliquotError.reason, error.reason) == ("INTERNAL", "INVALID_CONFIG")


def test_a_reason_is_a_stable_word() -> None:
    with pytest.raises(TypeError, match="UPPER_SNAKE"):
        type("Sloppy", (AliquotError,), {"reason": "not a word"})


def test_an_error_survives_the_way_between_processes() -> None:
    error = InvalidFieldError("spec.count", "is 0", hint="at least 1")
    error.add_note("seen")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, InvalidFieldError)
    assert (str(copy), copy.field, copy.hint, copy.__notes__) == (
        "spec.count: is 0",
        "spec.count",
        "at least 1",
        ["seen"],
    )


def test_tiers_are_ordered_from_weak_to_strong() -> None:
    assert Tier.NONE < Tier.WATCHDOG < Tier.PRELOAD < Tier.MPS < Tier.DRIVER < Tier.MIG
    assert [tier.word for tier in Tier if not tier.denies] == ["none", "watchdog"]


def test_tiers_have_the_contracts_numbers() -> None:
    types_pb2 = pytest.importorskip("aliquot.v1.types_pb2", reason="the contract's stubs are not generated")
    assert {f"TIER_{tier.name}": int(tier) for tier in Tier} | {"TIER_UNSPECIFIED": 0} == dict(types_pb2.Tier.items())


@pytest.mark.parametrize("tier", list(Tier))
def test_a_tiers_word_reads_back(tier: Tier) -> None:
    assert parse_tier(tier.word) is parse_tier(f" {tier.name} ") is tier


@pytest.mark.parametrize("word", ["", "strong", "tier_mig", "1"])
def test_an_unknown_tier_is_refused(word: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        parse_tier(word, "min_tier")
    assert caught.value.field == "min_tier"
    assert "none, watchdog, preload, mps, driver, mig" in caught.value.hint
