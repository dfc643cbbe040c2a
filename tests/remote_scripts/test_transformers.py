"""Models of Hugging Face's `transformers`, tiny and with random weights, where it is installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.remote_scripts.conftest import Both

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("accelerate") is None,
    reason="needs `pip install transformers accelerate`: make brings them with torch, unless TORCH=no",
)


@pytest.mark.parametrize(
    "names", [("bert", "gpt2"), pytest.param(("llama", "t5", "vit"), marks=pytest.mark.slow)], ids=" ".join
)
def test_a_model_trains_and_generates_the_same_wherever_it_runs(names: tuple[str, ...], both: Both) -> None:
    here, there = both(names)
    assert not [text for text in here.values() if "Traceback" in text], here
    assert there == here
