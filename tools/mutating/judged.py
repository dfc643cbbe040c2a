"""Mutants that nobody could notice, each with the reason: they don't count."""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {}
