"""Two tenants on one card, under each way of holding them: how many tokens a second each gets.

By themselves the ways give each half of it, or nothing at all to go by. Then by leases of a pool, whose agent measures
what each uses and keeps the pace of both (`enforcement.throttle`), as `bench/share.py` does on the model of a card.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.lib.hardware_lease import Bench, plain_environment
from bench.lib.hardware_slowdown import Unavailable, mps_daemon
from bench.stages.means import GIB, Card, Talking
from bench.stages.programs import TOKENS

MEMORY = "16Gi"
MEMORY_BYTES = 16 * GIB
SECONDS = 15.0
SETTLE_S = 12.0
"""Before a pace is judged, as in `bench/share.py`."""
PACED = ((0.5, 0.5), (0.75, 0.25))
PACED_TIERS = ("watchdog", "preload")
"""Those that leave time to the pace."""
Environments = list[Mapping[str, str]]
"""Of the two tenants' programs."""


def tenants(card: Card) -> dict[str, Any]:
    """Each alone, then both at once; `shares` are of what one gets alone without any tier."""
    card.require_torch()
    bench = card.bench(MEMORY_BYTES)
    variables = card.device | {"SECONDS": "0.5" if card.rehearse else str(SECONDS)}
    alone = _together([Talking(TOKENS, plain_environment(variables))])
    found: dict[str, Any] = {"alone": alone}
    if "failed" in alone[0]:
        return found | {"status": "failed", "why": "the program does not run alone"}
    for name, tier in TIERS.items():
        try:
            with tier(bench, variables) as environments:
                both = _together(Talking(TOKENS, environment) for environment in environments)
        except Unavailable as error:
            found[name] = {"not run": str(error)}
        except Exception as error:  # noqa: BLE001 - the other tiers can be tried all the same
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        else:
            found[name] = _judged(alone[0], both)
        card.partly(found)
    settled = variables | {"SETTLE_S": "0" if card.rehearse else str(SETTLE_S)}
    for held_by, wanted in itertools.product(PACED_TIERS, PACED):
        name = f"{held_by} with a pace, {' and '.join(map(str, wanted))}"
        found[name] = _paced(card, held_by, wanted, settled, alone[0])
        card.partly(found)
    return found


def _together(programs: Iterable[Talking]) -> list[dict[str, Any]]:
    """Programs that begin to count at the same word."""
    with contextlib.ExitStack() as stack:
        begun = [stack.enter_context(program) for program in programs]
        said = [program.next() for program in begun]
        if any("failed" in each for each in said):
            return said
        for program in begun:
            program.say()
        return [program.next() for program in begun]


def _paced(
    card: Card, tier: str, wanted: Sequence[float], variables: Mapping[str, str], alone: Mapping[str, Any]
) -> dict[str, Any]:
    """Leases of these shares, under the pace that the agent of a pool keeps."""
    try:
        settings = {"ALIQUOT_AGENT_ENFORCEMENT_TIERS": tier}
        with card.pool(**settings) as local, local.connect() as pool, contextlib.ExitStack() as stack:
            held = [
                stack.enter_context(pool.lease(f"{share},{MEMORY}", tenant=f"t{number}", wait_s=60))
                for number, share in enumerate(wanted)
            ]
            environment = plain_environment(variables)
            return _judged(alone, _together(Talking(TOKENS, environment, start=each.popen) for each in held), wanted)
    except Exception as error:  # noqa: BLE001 - as above
        return {"failed": f"{type(error).__name__}: {error}"}


def _judged(
    alone: Mapping[str, Any], both: list[dict[str, Any]], wanted: Sequence[float] = (0.5, 0.5)
) -> dict[str, Any]:
    if any("failed" in each for each in both):
        return {"both": both}
    shares = [each["tokens_per_s"] / alone["tokens_per_s"] for each in both]
    worst = max(abs(got - share) for got, share in zip(shares, wanted, strict=True))
    return {
        "both": both,
        "shares": [round(each, 3) for each in shares],
        "worst_error_points": round(worst * 100, 1),
        "used_pct": round(sum(shares) * 100, 1),
    }


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
