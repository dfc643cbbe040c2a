"""Two tenants with half of a card each, under each way of holding them: how many tokens a second each gets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench.lib.hardware_lease import Bench, plain_environment
from bench.lib.hardware_slowdown import Unavailable, mps_daemon
from bench.stages.means import GIB, Card, Talking
from bench.stages.programs import TOKENS

MEMORY_BYTES = 16 * GIB
SECONDS = 15.0
Environments = list[Mapping[str, str]]
"""Of the two tenants' programs."""


def tenants(card: Card) -> dict[str, Any]:
    """Each alone, then both at once; `shares` are of what one gets alone without any tier."""
    card.require_torch()
    bench = card.bench(MEMORY_BYTES)
    variables = card.device | {"SECONDS": "0.5" if card.rehearse else str(SECONDS)}
    alone = _together(bench, [plain_environment(variables)])
    found: dict[str, Any] = {"alone": alone}
    if "failed" in alone[0]:
        return found | {"status": "failed", "why": "the program does not run alone"}
    for name, tier in TIERS.items():
        try:
            with tier(bench, variables) as environments:
                both = _together(bench, environments)
        except Unavailable as error:
            found[name] = {"not run": str(error)}
        except Exception as error:  # noqa: BLE001 - the other tiers can be tried all the same
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        else:
            found[name] = {"both": both} | _shares(alone[0], both)
        card.partly(found)
    return found


def _together(_: Bench, environments: Environments) -> list[dict[str, Any]]:
    """Programs that begin to count at the same word."""
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(Talking(TOKENS, environment)) for environment in environments]
        began = [program.next() for program in programs]
        if any("failed" in each for each in began):
            return began
        for program in programs:
            program.say()
        return [program.next() for program in programs]


def _shares(alone: Mapping[str, Any], both: list[dict[str, Any]]) -> dict[str, Any]:
    if any("failed" in each for each in both):
        return {}
    shares = [round(each["tokens_per_s"] / alone["tokens_per_s"], 3) for each in both]
    return {"shares": shares, "worst_error_points": round(max(abs(each - 0.5) for each in shares) * 100, 1)}


@contextlib.contextmanager
def _nothing(_: Bench, variables: Mapping[str, str]) -> Iterator[Environments]:
    """What `watchdog` and `driver` do for time: the card's own time-slicing."""
    yield [plain_environment(variables)] * 2


@contextlib.contextmanager
def _preload(bench: Bench, variables: Mapping[str, str]) -> Iterator[Environments]:
    """The library without an agent that measures, and so without a pace: what it costs two tenants."""
    with bench.lease() as one, bench.lease() as other:
        yield [one.environment(variables), other.environment(variables)]


@contextlib.contextmanager
def _mps(bench: Bench, variables: Mapping[str, str]) -> Iterator[Environments]:
    """One server, half of the threads for each."""
    with mps_daemon(bench) as daemon:
        limits = {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={MEMORY_BYTES >> 20}M",
        }
        yield [{**daemon.client, **variables, **limits}] * 2


TIERS: dict[str, Callable[[Bench, Mapping[str, str]], contextlib.AbstractContextManager[Environments]]] = {
    "watchdog": _nothing,
    "preload": _preload,
    "mps": _mps,
}
