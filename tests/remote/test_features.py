"""What users of PyTorch do: the table in the documentation is what the probe finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.remote import probe

TABLE = Path(__file__).parents[2] / "docs" / "remote-features.md"
KNOWN = {
    "an explicit generator",
    "load with map_location to the device",
    "quantized tensors",
}


def test_the_bar_is_reached_and_the_table_is_what_is_found(device: torch.device) -> None:
    results = probe.run(device)
    assert {name for _, name, error in results if error} == KNOWN, [row for row in results if row[2]]
    assert len(results) >= 63
    if TABLE.exists():
        assert TABLE.read_text() == probe.table(results), "python -m tests.remote.probe --write docs/remote-features.md"
    else:
        pytest.fail("the table is missing")
