"""Stages with a whole pool on this machine: a coordinator, and an agent of its own card."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.lib.agent_figures import AgentFigures
from bench.stages.means import Card

SMALL, HOLDS, TAKES = "0.25,4Gi", "2Gi", "6Gi"
"""What a lease may have, what a modest program of it takes, and what an immodest one would."""
LEASES = 4
MEASURED_S, REHEARSED_S = 60.0, 5.0
_ENDED_WITHIN_S = 60.0


def demo(card: Card) -> dict[str, Any]:
    """Two tenants on one card: one within its part, one beyond it; killed parts of the pool."""
    found: dict[str, Any] = {"claims": {}}

    def claim(what: str, holds: Callable[[], bool], within_s: float = _ENDED_WITHIN_S) -> None:
        until = time.monotonic() + within_s
        while not (held := holds()) and time.monotonic() < until:
            time.sleep(0.05)
        found["claims"][what] = held
        card.partly(found)

    with card.pool() as local, local.connect() as pool, contextlib.ExitStack() as stack:
        modest = stack.enter_context(pool.lease(SMALL, tenant="vision", name="modest", wait_s=60))
        greedy = stack.enter_context(pool.lease(SMALL, tenant="speech", name="greedy", wait_s=60, grace_s=2))
        found["tiers"] = {
            held.name: held.slices[0].tier.name for held in map(pool.get, (modest.lease_id, greedy.lease_id))
        }
        holding = stack.enter_context(_held(modest.popen(_probe(HOLDS, hold=True), **_PIPES)))
        first = json.loads(holding.stdout.readline())
        claim("the modest program has what it asked for", lambda: first["held_bytes"] == 2 << 30)
        taking = stack.enter_context(_held(greedy.popen(_probe(TAKES, hold=True), **_PIPES)))
        taken = json.loads(taking.stdout.readline() or "{}")
        found["greedy"] = taken
        claim(
            "the greedy one was denied what is beyond its part, or ended",
            lambda: (taken.get("error") == 2 and taken["held_bytes"] < 4 << 30) or taking.poll() is not None,
        )
        claim("the modest one did not notice", lambda: holding.poll() is None)
        local.coordinator.kill()
        claim("it runs on without a coordinator", lambda: holding.poll() is None)
        local.start_coordinator()
        local.wait_ready()
        claim("no lease was lost with it", lambda: {each.name for each in pool.leases()} >= {"modest", "greedy"})
        local.nodes[0].agent.kill()
        claim("it runs on without an agent", lambda: holding.poll() is None)
        local.nodes[0].agent.start()
        local.wait_ready()
        claim(
            "and is known to the next one",
            lambda: any(holding.pid in part.pids for agent in pool.agents for part in agent.status().slices),
        )
        modest.release(wait_gone=True, timeout_s=_ENDED_WITHIN_S)
        claim("its end is the program's, too", lambda: holding.poll() is not None)
    broken = [what for what, holds in found["claims"].items() if not holds]
    return found | ({"status": "failed", "why": f"does not hold: {broken}"} if broken else {})


def poll(card: Card) -> dict[str, Any]:
    """What an agent costs that watches the card while leases hold memory on it."""
    with card.pool() as local, local.connect() as pool, contextlib.ExitStack() as stack:
        for number in range(LEASES):
            held = stack.enter_context(pool.lease("0.2,2Gi", tenant="vision", name=f"l{number}", wait_s=60))
            program = stack.enter_context(_held(held.popen(_probe("1Gi", hold=True), **_PIPES)))
            assert program.stdout is not None
            json.loads(program.stdout.readline())
        node = local.nodes[0]
        seconds = REHEARSED_S if card.rehearse else MEASURED_S
        return {"leases": LEASES} | AgentFigures(node.agent.pid, node.metrics).measure(seconds)


_PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def _probe(most: str, *, hold: bool) -> list[str]:
    return [sys.executable, "-m", "aliquot.agent.doctor.probe", "--most", most, *(["--hold"] if hold else [])]


@contextlib.contextmanager
def _held(process: subprocess.Popen[str]) -> Any:  # noqa: ANN401
    try:
        yield process
    finally:
        process.kill()
        process.wait()
