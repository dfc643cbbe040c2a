"""Real programs under a real coordinator and agent: what an idle one does not use is lent, and taken back."""

from __future__ import annotations

from tests.use.real import QUICK, lend_and_return


def test_a_borrowers_program_is_gone_soon_after_its_lenders_wakes_up() -> None:
    assert lend_and_return(QUICK) > 0
