"""One PostgreSQL for all tests of this folder, a fresh database for each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count

import pytest

from tests.conftest import postgres_bin_dir
from tests.failover import server

_numbers = count(1)


@contextlib.contextmanager
def a_server() -> Iterator[server.Postgres]:
    """One that runs until the end of the block."""
    bin_dir = postgres_bin_dir()
    if bin_dir is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    with server.running(bin_dir) as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[server.Postgres]:
    with a_server() as running:
        yield running


@pytest.fixture
def own_server() -> Iterator[server.Postgres]:
    """For a test that stops it or breaks it."""
    with a_server() as running:
        yield running


@pytest.fixture
def database(postgres: server.Postgres) -> str:
    return postgres.database(f"pool{next(_numbers)}")
