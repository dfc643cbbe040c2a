"""What is done by a process of its own: what it returns and refuses, and what becomes of one that fails or hangs."""

from __future__ import annotations

import asyncio
import time

import pytest

from aliquot.agent import node_key
from aliquot.agent.processes import apart as module
from aliquot.agent.processes.apart import apart
from aliquot.common.errors import SecurityError


async def test_a_key_is_made_and_signs_elsewhere_as_it_would_here() -> None:
    key_pem = await apart("aliquot.agent.node_key:make_key")
    public, signature = await apart("aliquot.agent.node_key:sign", key_pem, b"text")
    assert public == node_key.public_key(key_pem)
    assert isinstance(signature, bytes)


@pytest.mark.parametrize(
    ("place", "hint"),
    [("aliquot.agent.node_key:sign", "join again"), ("aliquot.nowhere:sign", "pip install 'aliquot[agent]'")],
)
async def test_what_is_refused_or_missing_says_what_to_do(place: str, hint: str) -> None:
    with pytest.raises(SecurityError) as error:
        await apart(place, "no key", b"text")
    assert hint in error.value.hint


async def test_one_that_ends_without_an_answer_is_told_of() -> None:
    with pytest.raises(OSError, match="os:_exit has ended with 3"):
        await apart("os:_exit", 3)


async def test_nothing_is_left_of_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def watched(*words: str, **options: object) -> asyncio.subprocess.Process:
        started.append(await start(*words, **options))  # type: ignore[arg-type]
        return started[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched)
    with pytest.raises(TimeoutError, match="time:sleep took longer than"):
        await apart(f"{time.sleep.__module__}:sleep", 600)
    assert await started[0].wait() < 0
