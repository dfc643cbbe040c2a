"""What becomes of a failure: it is minimised, told, and can be run again from what was printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.checking import check, named
from tests.simulation.faults import KINDS, Fault
from tests.simulation.mutant import MUTANTS, Mutant
from tests.simulation.running import Case, everything_about, minimise, run, run_once, story
from tests.simulation.stage import Stage

pytestmark = pytest.mark.no_cover

SHOWN = [mutant for mutant in MUTANTS if mutant.scene]


def test_a_failure_is_minimised_and_its_printed_case_fails_in_the_same_way() -> None:
    harmless = (Fault(10_000, "launcher.look", 0, 1), Fault(18_000, "net.reset_node", 0, 2))
    case = Case(2, "small", (*harmless, Fault(17_175, "admin.remove", 0, 3_796_942_416)))
    with named("lost means gone").applied():
        result = run(case)
        smallest, again = minimise(case, result)
        assert [fault.kind for fault in smallest.faults or ()] == ["admin.remove"]
        printed = re.search(r"--case '(.*)'", story(smallest, again))
        assert printed is not None
        assert run(Case.read(printed.group(1))).violations == again.violations
    assert not run_once(smallest).violations, "the mistake is to blame, not the case"


def test_a_case_reads_back_as_it_was_written() -> None:
    faults = (Fault(9_000, "agent.crash", 0, 77), Fault(12_500, "net.cut_node", 4_000, 1))
    for case in (Case(3), Case(4, "small"), Case(5, "small", ()), Case(6, "whole", faults)):
        assert Case.read(str(case)) == case
    with pytest.raises(ValueError, match="no size 'huge'"):
        Case.read('{"seed": 1, "size": "huge"}')


def test_one_case_can_be_told_in_full() -> None:
    lines: list[str] = []
    result = everything_about(Case(2, "small", ()), ["node-0003"], lines.append)
    assert not result.violations
    assert lines
    assert all("node-0003" in line for line in lines)


@pytest.mark.parametrize("name", ["driver's memory leased", "release frees at once", "answer before the commit"])
def test_a_broken_variant_is_caught(name: str) -> None:
    assert check(name).caught


@pytest.mark.parametrize("mutant", SHOWN, ids=[mutant.name for mutant in SHOWN])
def test_a_scene_shows_its_variant_and_nothing_else(mutant: Mutant) -> None:
    assert not Stage().play_all(mutant.scene), "the scene is to blame, not the mistake"
    with mutant.applied():
        violations = Stage().play_all(mutant.scene)
    assert violations
    assert "nobody caught" not in violations[0], "a rule of the auditor has to catch it"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(mutant.name for mutant in MUTANTS))
def test_every_broken_variant_is_caught(name: str) -> None:
    assert check(name).caught


def test_there_are_as_many_variants_and_kinds_of_faults_as_promised() -> None:
    assert len(MUTANTS) >= 15
    assert len(KINDS) >= 50


def test_every_variant_and_every_kind_of_fault_is_described() -> None:
    pages = Path(__file__).parents[2] / "docs"
    described = (pages / "simulation.md").read_text("utf-8") + (pages / "measured.md").read_text("utf-8")
    assert not [kind for kind in KINDS if f"| `{kind}` |" not in described]
    assert not [mutant.name for mutant in MUTANTS if f"| {mutant.name} | {mutant.mistake} |" not in described]
