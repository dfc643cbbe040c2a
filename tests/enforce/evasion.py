"""How long attackers who know everything hold more than their lease has, by attack and tier.

The simulated driver's books are read every few milliseconds, and decide. A neighbour's process and one outside any
lease run beside each attack; nothing may ever be done to them.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.common.tiers import Tier
from tests.agent.harness import until
from tests.client.real_pool import real_pool
from tests.enforce.churning import CHURN_S, LIMIT_BYTES, Churner, refuse
from tests.enforce.world import NEIGHBOUR, Program, World

ATTACKS = (
    "relay",
    "respawn",
    "hand_on",
    "slow_exit",
    "stop_and_continue",
    "rotation",
    "dodge",
    "sip",
    "phase",
    "file_lease",
    "early",
    "churn",
)
ACROSS = "churn_across_nodes"
"""A lane on each of two nodes; the agent of one is killed and started again in the midst of it."""
TIERS = (Tier.DRIVER, Tier.PRELOAD, Tier.WATCHDOG)
DEFAULTS = {"ALIQUOT_AGENT_WATCHDOG_OVER_MAX": "1500ms"}
"""What other tests set otherwise."""
MINUTE_S = 60.0
CALM_S = 2.0
"""How long an attack is still watched when the agent takes no more of its processes."""
LOOK_S = 0.01
GAP_S = 0.025
"""A shorter time within the limit, which is hardly seen, does not end one piece."""
LONGEST_BAR_S, PERCENT_BAR = 2.0, 5.0
BARRED = frozenset({Tier.WATCHDOG, Tier.PRELOAD})
"""Tiers that the two bars are for. `driver` denies by itself; the rest takes two looks to be sure of."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What an attack came to."""

    attack: str
    tier: Tier
    over_pct: float
    """The largest share of any minute over the limit."""
    longest_s: float
    """In one piece."""
    noticed: bool
    """Whether the agent did anything about it."""
    ended: bool
    """Whether its lease was ended for it."""
    others_touched: int

    @property
    def within_bars(self) -> bool:
        """See above."""
        bounded = self.longest_s <= LONGEST_BAR_S and self.over_pct <= PERCENT_BAR
        return (bounded or self.tier not in BARRED) and not self.others_touched


def attack(made: World, name: str, lease: str, span_s: float = MINUTE_S) -> Gain:
    """One attack by a lease of its own, for at most `span_s`."""
    if name == "churn":
        return _churn(made, lease, span_s)
    neighbour = made.probe("--most", "64Mi", lease=NEIGHBOUR)
    assert neighbour.answer() is not None
    bystander = made.bystander()
    others = {neighbour.pid, bystander.pid}
    made.grant(lease)
    assert made.node.agent is not None
    way = "managed" if made.tier is Tier.DRIVER else "malloc"
    begun = time.monotonic()
    attacker = made.run_outside(
        "tests.enforce.programs.attacker",
        *(name, lease, way, str(made.node.agent.pid)),
        ATTACKED_FOLDER=str(made.folder(lease)),
    )
    samples = _watch(made, attacker, others, begun + span_s)
    ended = made.failure_of(lease) == "OVER_LIMIT"
    touched = sum(program.process.poll() is not None for program in (neighbour, bystander))
    attacker.process.kill()
    made.stop(lease)
    until(lambda: made.is_gone(lease) or made.failure_of(lease) != "", f"{lease} is gone")
    made.settle()
    noticed = any(f"lease {lease}" in line and "signal SIG" in line for line in made.node.log.splitlines())
    pieces = spans(samples, made.limit_bytes)
    gain = Gain(
        name, made.tier, round(100 * most_of(pieces) / MINUTE_S, 2), round(longest(pieces), 2), noticed, ended, touched
    )
    sys.stderr.write(f"{gain}\n")
    return gain


def _churn(made: World, lease: str, span_s: float) -> Gain:
    """Lease after lease of one tenant, each exceeded for a moment and given back, until one ends as OVER_LIMIT: from
    then on the tenant is refused, where its policy says so.
    """
    neighbour = made.probe("--most", "64Mi", lease=NEIGHBOUR)
    assert neighbour.answer() is not None
    bystander = made.bystander()
    others = {neighbour.pid, bystander.pid}
    samples: list[tuple[float, int]] = []
    until_s, ended, number = time.monotonic() + span_s, False, 0
    way = "managed" if made.tier is Tier.DRIVER else "malloc"
    assert made.node.agent is not None
    while time.monotonic() < until_s and not ended:
        number += 1
        each = f"{lease}-{number}"
        made.grant(each)
        attacker = made.run_outside(
            "tests.enforce.programs.attacker",
            *("respawn", each, way, str(made.node.agent.pid)),
            ATTACKED_FOLDER=str(made.folder(each)),
        )
        over_since = math.inf
        while (now := time.monotonic()) < min(until_s, over_since + CHURN_S) and attacker.process.poll() is None:
            held = made.held_by_others_than(others)
            samples.append((now, held))
            if held > made.limit_bytes:
                over_since = min(over_since, now)
            time.sleep(LOOK_S)
        attacker.process.kill()
        ended = made.failure_of(each) == "OVER_LIMIT"
        made.stop(each)
        until(lambda each=each: made.is_gone(each) or made.failure_of(each) != "", f"{each} is gone")  # type: ignore[misc]
        ended = ended or made.failure_of(each) == "OVER_LIMIT"
        samples.append((time.monotonic(), made.held_by_others_than(others)))
    touched = sum(program.process.poll() is not None for program in (neighbour, bystander))
    made.settle()
    noticed = any(f"lease {lease}" in line and "signal SIG" in line for line in made.node.log.splitlines())
    pieces = spans(samples, made.limit_bytes)
    percent = round(100 * most_of(pieces) / MINUTE_S, 2)
    gain = Gain("churn", made.tier, percent, round(longest(pieces), 2), noticed, ended, touched)
    sys.stderr.write(f"{gain}\n")
    return gain


def across_nodes(tier: Tier, span_s: float = MINUTE_S) -> Gain:
    """Churn on two nodes of a real pool, whose tenant is refused once a lease of it has ended for what it held."""
    way, tenant = "managed" if tier is Tier.DRIVER else "malloc", "churns"
    with real_pool(nodes=2, gpus=1, tiers=",".join(dict.fromkeys((tier.word, "watchdog"))), settings=DEFAULTS) as local:
        refuse(local, tenant)
        churner = Churner(local, tenant, way)
        churner.attack(span_s, restart="node-1")
        pieces = spans(churner.samples, LIMIT_BYTES)
        percent = round(100 * most_of(pieces) / MINUTE_S, 2)
        gain = Gain(
            ACROSS,
            tier,
            percent,
            round(longest(pieces), 2),
            noticed=churner.ended,
            ended=churner.ended,
            others_touched=0,
        )
    sys.stderr.write(f"{gain}, {churner.leases} leases\n")
    return gain


def _watch(made: World, attacker: Program, others: set[int], until_s: float) -> list[tuple[float, int]]:
    samples: list[tuple[float, int]] = []
    while (now := time.monotonic()) < until_s:
        held = made.held_by_others_than(others)
        samples.append((now, held))
        if attacker.process.poll() is not None:
            until_s = min(until_s, now + CALM_S)
        time.sleep(LOOK_S)
    return samples


def spans(samples: Sequence[tuple[float, int]], limit_bytes: int) -> list[tuple[float, float]]:
    """From when to when more than the limit was held, in seconds."""
    found: list[tuple[float, float]] = []
    for (at, held), (then, _) in itertools.pairwise(samples):
        if held > limit_bytes:
            begin = found.pop()[0] if found and math.isclose(found[-1][1], at) else at
            found.append((begin, then))
    return found


def most_of(pieces: Sequence[tuple[float, float]]) -> float:
    """The most seconds of them in any minute."""
    return max(
        (sum(max(0.0, min(end, begin + MINUTE_S) - max(start, begin)) for start, end in pieces) for begin, _ in pieces),
        default=0.0,
    )


def longest(pieces: Sequence[tuple[float, float]]) -> float:
    """Seconds, short gaps included."""
    most, begin, last = 0.0, None, -math.inf
    for start, end in pieces:
        begin = start if begin is None or start - last > GAP_S else begin
        last = end
        most = max(most, last - begin)
    return most
