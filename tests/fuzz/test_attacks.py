"""A short attack with random messages finds nothing; `python -m tests.fuzz --minutes N` goes on for longer."""

from __future__ import annotations

from random import Random

import pytest

from aliquot.v1 import agent_pb2
from tests.fuzz.attacking import METHODS, attack, vocabulary
from tests.fuzz.mutating import changed, meant

SECONDS = 8.0


async def test_nothing_that_is_sent_harms_the_coordinator_or_who_behaves() -> None:
    result = await attack(SECONDS, seed=1, quiet_s=1.0)
    assert not result.findings
    assert len(result.rpcs) == len(METHODS) + 1, "each call, and the agents' session"
    assert result.sessions_ready, "some were told what is desired, before they misbehaved"
    assert len(result.answered) > len(METHODS) // 2, "what is refused at the door attacks nothing behind it"
    assert result.document()["findings"] == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_same_seed_makes_the_same_messages(seed: int) -> None:
    def made() -> bytes:
        rng = Random(seed)
        message = changed(meant(agent_pb2.AgentMessage.DESCRIPTOR, rng, vocabulary()), rng)
        return message.SerializeToString(deterministic=True)

    assert made() == made()
