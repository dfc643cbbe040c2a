"""One PostgreSQL for all tests of this folder, a fresh database for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.conftest import postgres_bin_dir
from tests.failover import server

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[server.Postgres]:
    bin_dir = postgres_bin_dir()
    if bin_dir is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    with server.running(bin_dir) as running:
        yield running


@pytest.fixture
def database(postgres: server.Postgres) -> str:
    return postgres.database(f"pool{next(_numbers)}")
