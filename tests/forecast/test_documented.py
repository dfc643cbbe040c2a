"""What docs/forecast.md says of forecasts follows from its table, and its table from the public lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scale
from bench.lib.demand import dlrm
from bench.lib.forecast_table import COUNTED, DOCUMENT, documented, figures, said, sentence, write

TEXT = DOCUMENT.read_text("utf-8")


def test_the_text_says_what_the_table_does_and_the_bars_are_met() -> None:
    rows = documented(TEXT)
    found = figures(rows)
    assert said(TEXT) == sentence(rows, found)
    assert len({row.name for row in rows}) == len(rows) == COUNTED + 2
    assert found["mae_ratio_24h"] <= 0.73
    assert found["mae_ratio_6h"] <= 0.41
    assert found["mae_ratio_worst"] <= 0.87
    assert 0.88 <= found["coverage_90"] <= 0.92


def test_the_table_is_written_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "forecast.md"
    path.write_text(TEXT, "utf-8")
    rows = documented(TEXT)
    write(rows, path)
    assert path.read_text("utf-8") == TEXT
    write([rows[0]._replace(ratio=9.0), *rows[1:]], path)
    changed = path.read_text("utf-8")
    assert documented(changed)[0].ratio == 9.0
    assert said(changed) != said(TEXT)


def test_a_row_of_the_table_comes_out_again(traces_dir: Path) -> None:
    ((name, hours),) = dlrm(traces_dir / "alibaba-dlrm-2025").items()
    assert scale.row_of(name, hours).line in TEXT


def test_every_field_has_a_part_and_is_explained() -> None:
    assert set(scale.FIELDS) == set(scale.PARTS)
    assert scale.__doc__ is not None
    assert not [field for fields in scale.FIELDS.values() for field in fields if field not in scale.__doc__]


@pytest.mark.parametrize("text", ["", "| series |\n"])
def test_a_document_without_the_table_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="no table of forecasts"):
        documented(text)
