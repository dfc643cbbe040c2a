"""The order in which means of admission are tried is policy: the documented table is the list."""

from __future__ import annotations

import re
from pathlib import Path

from aliquot.coordinator.core.deciding.admission.means.order import MEANS

TABLE = Path(__file__).parents[2] / "docs" / "tenancy.md"


def test_the_documented_order_is_the_order() -> None:
    text = TABLE.read_text()
    table = text[text.index("| means | tried when |") :].split("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", table, re.MULTILINE)[1:]
    assert rows == [(means.name, means.situation.value) for means in MEANS]
