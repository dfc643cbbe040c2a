"""The error tree: every stable reason has its class, and every class says what to do."""

from __future__ import annotations

import inspect
import pickle

import grpc
import pytest

import aliquot.client
from aliquot.client import InternalError, LeaseLost, PoolError
from aliquot.client import _errors as errors
from aliquot.client._mapping import to_error
from aliquot.client._methods import LEASES
from aliquot.common.failures import RpcFailure
from aliquot.coordinator.wire.errors import _CODES as SENT_WITH
from aliquot.coordinator.wire.errors import _REASONS as SENT_FOR
from aliquot.v1 import errors_pb2

REASONS = [name for name in errors_pb2.ErrorReason.keys() if name != "ERROR_REASON_UNSPECIFIED"]  # noqa: SIM118


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_the_contract_becomes_a_class_of_its_own_branch(reason: str) -> None:
    code = SENT_WITH.get(reason, grpc.StatusCode.INTERNAL).name
    error = to_error(
        RpcFailure(code, "said", "here:1", reason=reason, hint="do this"), LEASES["Allocate"], ["here:1"], 1.0
    )
    assert type(error) is not PoolError
    assert (type(error) is InternalError) == (reason == "INTERNAL")
    assert (error.message, error.hint, error.stated_reason) == ("said", "do this", reason)


def test_no_reason_is_sent_with_two_codes() -> None:
    assert sorted(" ".join(SENT_FOR.values()).split()) == sorted(SENT_WITH)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "NOT_FOUND", "DATA_LOSS"])
def test_what_is_not_ours_has_words_too(code: str) -> None:
    error = to_error(RpcFailure(code, "said", "here:1"), LEASES["Allocate"], ["here:1", "there:1"], 1.0)
    assert isinstance(error, PoolError)
    assert "said" in error.message or "here:1" in error.message


def test_the_tree_in_the_docstring_names_every_class() -> None:
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, PoolError):
            assert name in (errors.__doc__ or ""), name
            assert getattr(aliquot.client, name) is value
            assert value.__doc__


def test_errors_survive_the_way_between_processes() -> None:
    lost = LeaseLost("gone", lease_id="l-1", end_reason="EXPIRED", hint="ask again")
    copy = pickle.loads(pickle.dumps(lost))
    assert isinstance(copy, LeaseLost)
    assert (copy.message, copy.lease_id, copy.end_reason, copy.hint) == ("gone", "l-1", "EXPIRED", "ask again")
