"""A pool of one node with four devices."""

from __future__ import annotations

import pytest

from tests.core.harness import Books, node


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one"))
    books.settle()
    return books
