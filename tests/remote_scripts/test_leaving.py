"""What a program's exit code is where it has ended well, and what it asked for last has not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aliquot.cli._exits import Exit
from aliquot.remote import errors
from aliquot.remote.compat import leaving


@pytest.mark.parametrize(
    ("ended", "codes"),
    [
        (errors.SessionLost("it is gone"), [Exit.UNAVAILABLE]),
        (errors.SessionLeaseEnded("it is over"), [Exit.LEASE_LOST]),
        (errors.RemoteIndexError("aten::index_select"), [leaving.FAILED]),
        (errors.SessionClosed("by the program"), []),
    ],
)
def test_it_is_the_same_as_where_the_program_had_waited(
    ended: errors.RemoteError, codes: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def synchronize() -> None:
        raise ended

    monkeypatch.setattr(leaving, "_codes", [])
    monkeypatch.setattr(leaving, "ATTACHED", [SimpleNamespace(closed=None, synchronize=synchronize)])
    leaving.settle()
    assert leaving._codes == codes
    assert (ended.message in capsys.readouterr().err) is bool(codes)
