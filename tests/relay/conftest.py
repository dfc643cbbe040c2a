"""PostgreSQL, for leaders that are followed."""

from __future__ import annotations

from tests.failover.conftest import database, postgres

__all__ = ["database", "postgres"]
