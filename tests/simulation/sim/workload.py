"""What launchers ask for: shapes as seen in shared clusters, with everything that a request may carry."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from aliquot.v1 import types_pb2
from tests.simulation.sim.launchers import Asked, Launcher
from tests.simulation.sim.mig import PROFILES
from tests.simulation.sim.people import TENANTS

if TYPE_CHECKING:
    from tests.simulation.sim.world import World

GIB = 1 << 30
MIG_EVERY = 14
"""One request in so many asks for a part of a card by its profile."""
OR_MIG_EVERY = 3
"""For one request in so many for a part of a device, a MIG instance will do as well."""
SAME_CARD_EVERY = 3
"""For one request in so many, members of a gang may share a card."""
MODEL_SETS = ((), (), (), ("A100-40",), ("A100-80", "H100-80"), ("L4",), ("A100",))


class Workload:
    """Draws requests."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random

    def next(self, launcher: Launcher, number: int) -> Asked:
        """One request of a launcher, drawn from the launcher's own randomness."""
        random = launcher.random
        spec, gang = _by_profile(random) if number % MIG_EVERY == 0 else _shape(random)
        models = random.choice(MODEL_SETS)
        if models and not spec.mig_profile:
            spec.models.add().any_of.extend(models)
        request = types_pb2.LeaseRequest(
            spec=spec,
            or_mig=number % OR_MIG_EVERY == 0 and not spec.mig_profile and spec.share_milli < 1000,
            tenant=launcher.tenant_of(random.choice(TENANTS)),
            gang_size=gang,
            same_card=number % SAME_CARD_EVERY == 0,
            priority=random.choice((0, 0, 0, 0, 5, -5)),
            cpu_milli=random.choice((0, 0, 1000, 4000)),
            preemptible=random.random() < 0.3,
            grace_s=random.choice((0, 2, 5)) or 3,
            ttl_s=random.choice((20, 30, 45)),
            name=f"{launcher.host}-{number}",
        )
        if random.random() < 0.05:
            request.ttl_s, request.detached = 0, True
            request.time_limit_s = 40
        elif random.random() < 0.08:
            request.time_limit_s = random.randint(5, 30)
        if random.random() < 0.1:
            request.no_queue = True
        if random.random() < 0.1:
            request.affinity_group, request.max_per_node = f"g{random.randrange(4)}", random.randint(1, 2)
        if random.random() < 0.05:
            request.spread_domains, request.affinity_group = True, f"s{random.randrange(3)}"
        run_s = min(60.0, 2 + random.expovariate(1 / 15))
        request.movable = random.random() < 0.4
        if gang > 1 and random.random() < 0.5:
            request.host_memory_bytes = random.choice((60, 120, 200)) * GIB
        if request.preemptible and random.random() < 0.2:
            request.min_run_s = random.choice((1, 5))
        if gang > 1 or random.random() < 0.05:
            run_s = self._make_elastic(request, run_s, random)
        return Asked(key=f"{launcher.host}-{number}", request=request, run_s=run_s)

    def _make_elastic(self, request: types_pb2.LeaseRequest, run_s: float, random: Random) -> float:
        """Many that ask for several can do with fewer or use more; they run for longer, so that there is time to."""
        if random.random() < 0.6:
            return run_s
        count, asked = request.spec.count, request.spec.count * request.gang_size
        if random.random() < 0.7:
            request.min_count = count * random.randint(1, request.gang_size)
        if random.random() < 0.8 or not request.min_count:
            request.max_count = asked + count * random.randint(1, 3)
        return run_s + 20 + random.random() * 40


def _by_profile(random: Random) -> tuple[types_pb2.GpuSpec, int]:
    """A part of a card, as its driver can cut it."""
    return types_pb2.GpuSpec(count=1, mig_profile=random.choice(PROFILES).name), 1


def _shape(random: Random) -> tuple[types_pb2.GpuSpec, int]:
    """What one member is to have, and how many of them there are to be."""
    dice = random.random()
    spec = types_pb2.GpuSpec(count=1)
    gang = 1
    if dice < 0.55:
        spec.share_milli = random.choice((50, 100, 125, 250, 250, 333, 500, 500, 750))
        if random.random() < 0.6:
            spec.memory_bytes = random.randint(1, 20) * GIB
    elif dice < 0.85:
        spec.share_milli = 1000
        spec.count = random.choice((1, 1, 1, 2, 2, 4, 8))
    elif dice < 0.93:
        spec.share_milli = random.choice((500, 1000))
        gang = random.choice((2, 3, 4, 6))
    elif dice < 0.95:
        spec.memory_bytes = random.randint(1, 70) * GIB
    elif dice < 0.97:
        spec.share_milli, spec.memory_bytes = 1, GIB >> 4  # the smallest part there is
    else:
        spec.share_milli, spec.count = 1000, random.choice((9, 16))  # fits no node that there is
    return spec, gang
