"""The bypass suite against the kernel's limits on cgroups, on the model of them: not run on hardware."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.common.tiers import Tier
from tests.enforce.cases_dmem import CASES, DmemWorld
from tests.enforce.conftest import why_not
from tests.enforce.verdict import Kind

KILLED = {
    "another card, of which the lease has nothing",
    "left for another cgroup, by a tenant who is root",
}
"""What the kernel's limit says nothing of; the watchdog sees it at its next poll."""


@pytest.fixture(scope="module")
def shared() -> Iterator[DmemWorld]:
    if problem := why_not(Tier.DRIVER):
        pytest.skip(problem)
    with tempfile.TemporaryDirectory(prefix="aliquot-dmem-") as folder:
        directory = Path(folder) / "dmem"
        directory.mkdir()
        with contextlib.closing(DmemWorld(directory)) as made:
            yield made


@pytest.mark.root("to make cgroups")
@pytest.mark.parametrize("title", CASES)
def test_no_attempt_leaves_a_card_with_more_than_the_lease_has(shared: DmemWorld, title: str) -> None:
    try:
        verdict = CASES[title](shared)
        if verdict.kind is Kind.NOT_RUN:
            pytest.skip(verdict.detail)
        allowed = {Kind.KILLED} if title in KILLED else {Kind.DENIED, Kind.KEPT_OFF}
        assert verdict.kind in allowed, verdict
    finally:
        shared.settle()
