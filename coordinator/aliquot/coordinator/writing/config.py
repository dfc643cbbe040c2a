"""Bounds of the writer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriterConfig:
    """Bounds of the writer."""

    queue_max: int = 20_000
    """Commands waiting to be decided; beyond it callers are told to come back."""
    wait_max_ms: int = 2_000
    """While commands wait longer than this to be decided, those who ask for more are told to come back."""
    turn_ms: int = 5
    """Longest stretch of deciding before the event loop gets its turn."""
    linger_ms: int = 4
    """While many callers are about, commands wait this long for others, to be decided and committed together: each then
    costs less to decide and to sync. A lone caller never waits.
    """
    group_facts_max: int = 8_192
    retry_first_ms: int = 100
    """First pause before a journal that failed is tried again; it doubles up to `retry_max_ms`."""
    retry_max_ms: int = 5_000
