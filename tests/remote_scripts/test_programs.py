"""Programs that say `cuda` everywhere, run as they are: on the CPU here, and on a part of a GPU elsewhere."""

from __future__ import annotations

import pytest

from tests.remote_scripts.conftest import Both, Run

NAMES = ("classifier", "diffusion", "gan", "gpt", "lstm", "reinforce", "sparse", "torchscript")


@pytest.fixture(scope="module")
def printed(both: Both) -> tuple[dict[str, str], dict[str, str]]:
    return both(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_prints_the_same_wherever_it_runs(name: str, printed: tuple[dict[str, str], dict[str, str]]) -> None:
    here, there = printed
    assert "Traceback" not in here[name], here[name]
    assert there[name] == here[name], "to the last digit"


def test_what_programs_for_cuda_write_holds(run_remote: Run) -> None:
    from tests.remote_scripts.conftest import FOLDER

    done = run_remote("-W", "ignore", str(FOLDER / "idioms.py"))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_mixed_precision_and_what_is_asked_of_cuda(run_remote: Run) -> None:
    from tests.remote_scripts.conftest import FOLDER

    done = run_remote(str(FOLDER / "mixed.py"))
    assert (done.returncode, done.stdout) == (0, "mixed precision: True cuda:0\n"), done.stderr
