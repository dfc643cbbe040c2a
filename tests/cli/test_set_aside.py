"""Work that the coordinator has set aside is seen, and tried again, from a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.cli import _options as options
from aliquot.cli.main import main
from aliquot.client import Pool
from aliquot.v1 import admin_pb2, types_pb2

LEASE = "l-0123456789abc"
FOUND = admin_pb2.SetAside(work=f"placing {LEASE}", subject=LEASE, error="ZeroDivisionError: x", failures=5, since_ms=1)


class Troubled:
    """A coordinator that has set one request aside."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def unary(self, method: Any, request: Any, address: str, timeout_s: float) -> Any:
        del address, timeout_s
        self.requests.append(request)
        if method.answer is types_pb2.Lease:
            return types_pb2.Lease(lease_id=LEASE, state=types_pb2.LEASE_STATE_QUEUED, set_aside=["placing: 5 times"])
        return admin_pb2.RetrySetAsideResponse(found=[FOUND])

    def close(self) -> None:
        """Nothing to drop."""


@pytest.fixture
def troubled(monkeypatch: pytest.MonkeyPatch) -> Any:
    transport: Any = Troubled()
    monkeypatch.setattr(options, "open_pool", lambda _: Pool("nowhere:1", transport=transport, agent_sockets=()))
    return transport


def test_it_is_listed_with_its_error_and_nothing_is_tried(troubled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["set-aside"]) == 0
    shown = capsys.readouterr().out
    assert LEASE in shown
    assert "ZeroDivisionError: x" in shown
    assert troubled.requests == [admin_pb2.RetrySetAsideRequest()]


def test_one_subject_is_tried_again(troubled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["set-aside", LEASE, "--retry", "--json"]) == 0
    assert '"failures": 5' in capsys.readouterr().out
    assert troubled.requests == [admin_pb2.RetrySetAsideRequest(subject=LEASE, carry_out=True)]


def test_a_lease_says_so(troubled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", LEASE]) == 0
    assert "set aside: placing: 5 times" in capsys.readouterr().out
    assert len(troubled.requests) == 1
