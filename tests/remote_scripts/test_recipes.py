"""Public recipes, each as its own program, on a part of a GPU elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.remote_scripts.conftest import Run
from tests.remote_scripts.corpus import NAMES, missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def results(run_remote: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of each that can be run here, in one lease."""
    told = tmp_path_factory.mktemp("recipes") / "results.json"
    names = [name for name in NAMES if not missing(name)]
    done = run_remote(
        "-m", "tests.remote_scripts.corpus", "--json", str(told), *names, gpu="0.5(A100),10Gi", limit_s=3500
    )
    assert told.exists(), done.stderr
    found: dict[str, str] = json.loads(Path(told).read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_unmodified(name: str, results: dict[str, str]) -> None:
    if absent := missing(name):
        pytest.skip(f"needs {absent}, which `make test-long` installs")
    assert not results[name], "unmodified"
