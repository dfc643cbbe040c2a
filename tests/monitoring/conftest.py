"""One pool for all that look at it through Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitoring.programs import program
from tests.monitoring.site import Site, site
from tools.monitoring.__main__ import FOLDER


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    program("prometheus")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    with site(folder, FOLDER / "rules.yaml") as made:
        yield made
