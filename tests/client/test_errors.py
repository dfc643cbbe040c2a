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


@pytest.mark.parametrize(
    ("code", "said", "message", "hint"),
    [
        (
            "UNAVAILABLE",
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused (111)",
            "no coordinator answers at here:1 or there:1 (Connection refused (111))",
            "aliquot up",
        ),
        ("UNAVAILABLE", "it: went away", "no coordinator answers at here:1 or there:1 (it: went away)", "aliquot up"),
        ("UNAVAILABLE", "x: HTTP proxy returned 403", "here:1: the proxy that grpc_proxy names", "no_proxy"),
        ("UNAVAILABLE", "ssl: WRONG_VERSION_NUMBER", "here:1: what listens there speaks no TLS", "7071"),
        ("UNAVAILABLE", "CERTIFICATE_VERIFY_FAILED: x", "here:1: its certificate is signed by nobody", "CA_FILE"),
        ("UNAVAILABLE", "Hostname Verification Check failed.", "here:1: its certificate is for another", "openssl"),
        ("UNAVAILABLE", "Failed parsing HTTP/2", "here:1: what listens there is a web server", "7070"),
        ("UNAVAILABLE", "Socket closed", "here:1: what listens there closes the connection", "log in"),
        ("UNAVAILABLE", "errors resolving x", "here:1: this machine does not know that name", "spelling"),
        ("UNAVAILABLE", "DNS resolution failed for x", "here:1: this machine does not know that name", "spelling"),
        ("DEADLINE_EXCEEDED", "late", "Allocate was not answered by here:1 or there:1 within 1.5 s", "try again"),
        ("UNIMPLEMENTED", "?", "what listens at here:1 doesn't know Allocate", "older than this client"),
        ("DATA_LOSS", "lost", "Allocate: DATA_LOSS: lost", "ask somebody"),
    ],
)
def test_what_was_met_is_said_and_what_to_do_about_it(code: str, said: str, message: str, hint: str) -> None:
    failure = RpcFailure(code, said, "here:1", hint="ask somebody")
    error = to_error(failure, LEASES["Allocate"], ["here:1", "there:1"], 1.5)
    assert error.message.startswith(message)
    assert hint in error.hint


def test_all_that_a_coordinator_tells_of_a_refusal_is_in_the_error() -> None:
    failure = RpcFailure(
        "RESOURCE_EXHAUSTED", "full", "here:1", reason="QUEUE_FULL", hint="later", metadata={"queue": "q"}
    )
    failure.retry_after_s = 2.5
    failure.violations = (("gpu", "too much"),)
    error = to_error(failure, LEASES["Allocate"], ["here:1"], 1.0)
    assert (error.stated_reason, error.metadata, error.retry_after_s) == ("QUEUE_FULL", {"queue": "q"}, 2.5)
    assert [(each.subject, each.description) for each in error.violations] == [("gpu", "too much")]
    lost = to_error(
        RpcFailure("NOT_FOUND", "gone", "here:1", reason="LEASE_EXPIRED", metadata={"end_reason": "EXPIRED"}),
        LEASES["Get"],
        ["here:1"],
        1.0,
    )
    assert isinstance(lost, LeaseLost)
    assert (lost.end_reason, lost.stated_reason) == ("EXPIRED", "LEASE_EXPIRED")


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
