"""Refusals that a relay itself sends to agents, in the form of the coordinator's own."""

from __future__ import annotations

import grpc

from aliquot.coordinator.agents.relayed.ending import Ending, refusal

_AGENTS_PER_S = 1_000
"""At which a new leader, or another relay, is to get agents back."""
_RETRY_LEAST_MS = 300


def no_leader(agents: int) -> Ending:
    """The coordinator is gone for the moment. So many agents are told at once: they come back one after the other."""
    retry_ms = max(_RETRY_LEAST_MS, 1000 * agents // _AGENTS_PER_S)
    return refusal(
        grpc.StatusCode.UNAVAILABLE,
        "NOT_LEADER",
        "this relay reaches no coordinator that leads at the moment",
        retry_ms,
    )


def leaving(retry_ms: int) -> Ending:
    """This relay stops."""
    return refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", "this relay is shutting down", retry_ms)
