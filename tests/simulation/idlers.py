"""A campaign of idleness: leases with known patterns on a pool, and what the pool says of them minute by minute.

Production coordinators and agents in simulated time, with the auditor listening. What a lease is said to do is read
from the journal's facts; what it truly does is what its programs were told to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.sim.loop import US_PER_S
from tests.simulation.stage import Stage

WINDOW_MIN = 10
"""A pause that is shorter is none."""
SETTLED_MIN = 12
"""After so long a pause the pool should know: the window, and a look."""
QUIET = (2, 3, 5)
ENDING_AFTER_MIN, LENDING_AFTER_MIN = 45, 15
Plan = Callable[[int, Random], int]
"""(minute, chance) -> percent of the device's time."""


def training(minute: int, random: Random) -> int:
    """Bursts, with a minute of loading data now and then."""
    return 0 if random.random() < 0.15 else random.randrange(5, 9)


def evaluating(minute: int, random: Random) -> int:
    """Twenty minutes of work, six of waiting."""
    return 7 if minute % 26 < 20 else 0


def notebook(minute: int, random: Random) -> int:
    """Somebody thinks longer than they compute."""
    return 6 if minute % 40 < 3 else 0


def warm(minute: int, random: Random) -> int:
    """A server that nobody asks anything."""
    return 0


def serving(minute: int, random: Random) -> int:
    """A server that is asked something every few minutes."""
    return 3 if minute % 4 == 0 else 0


def sleeper(minute: int, random: Random) -> int:
    """It does nothing for long, and then something."""
    return 8 if minute % 60 >= 55 or minute < 2 else 0


@dataclass(slots=True)
class Idler:
    """One lease, what it does, and what is said of it."""

    name: str
    kind: str
    plan: Plan | None
    """None: no program is there at all."""
    percent: int = -1
    quiet_min: int = 0
    """For how many minutes it has done nothing."""
    said: int = 0
    hits: int = 0
    """Minutes that are rightly said to be idle."""
    false: int = 0
    """Minutes that are wrongly."""
    missed: int = 0
    """Minutes in which that should have been known and was not."""


@dataclass(slots=True)
class Result:
    """The figures."""

    leases: int = 0
    precision: float = 1.0
    recall: float = 1.0
    lent_back_ms: list[int] = field(default_factory=list)
    ended: int = 0
    ended_unwarned: int = 0
    gpu_hours_won: float = 0.0
    loans: int = 0
    hung: int = 0
    """Hung leases that were said to be."""
    wrong: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


class Campaign(Stage):
    """Plays patterns minute by minute."""

    def __init__(self, scale: int = 1) -> None:
        """`scale` 10: 200 leases."""
        super().__init__()
        self._scale = scale
        self._random = Random(7)
        self.idlers: list[Idler] = []
        self.result = Result()
        self._by_id: dict[str, Idler] = {}
        self._told: set[str] = set()
        self._since_us: dict[str, int] = {}
        """Borrower's slice -> when its lender did something."""
        self._began_ms: dict[str, tuple[int, int]] = {}
        """Borrower's slice -> when it became active, and its share."""

    def run(self, minutes: int) -> Result:
        """Everything."""
        with self.playing():
            self._prepare()
            for minute in range(minutes):
                if self.violations:
                    break
                self._act(minute)
                self._pass(60 * US_PER_S - (self.world.loop.now_us % (60 * US_PER_S)))
                self._judge(minute)
            for began_ms, share in self._began_ms.values():
                self._won(began_ms, share)
            return self._sum_up()

    def _prepare(self) -> None:
        scale = self._scale
        self.play(f"pool {2 * scale} of 3")
        self.play("start")
        auditor = self.world.auditor
        auditor._count = self._counting(auditor._count)  # type: ignore[method-assign, assignment]
        self.play("wait 40")
        self.play(f"queue default idle=lend after={LENDING_AFTER_MIN * 60}")
        self.play(f"queue strict idle=release after={ENDING_AFTER_MIN * 60} warn=900,1800")
        for each in range(scale):
            self._ask(f"hung-{each}", "hung", None, "1 ttl=86400")
            self.play(f"work hung-{each} 100")
            self._device(f"hung-{each}").power_mw = 70_000
            self._ask(f"gang-{each}", "gang", None, "0.1,1Gi gang=4 ttl=86400")
            self.play(f"work gang-{each} 6")
            self._programs[f"gang-{each}"][3].busy_percent = 0
        kinds: list[tuple[str, Plan | None, int]] = [
            ("training", training, 4), ("evaluating", evaluating, 3), ("notebook", notebook, 4), ("warm", warm, 2),
            ("serving", serving, 2), ("sleeper", sleeper, 2), ("held", None, 1),
        ]  # fmt: skip
        for kind, plan, number in kinds:
            for each in range(number * scale):
                name = f"{kind}-{each}"
                queue = "strict" if kind in ("warm", "notebook") and each % 2 else ""
                self._ask(name, kind, plan, f"0.15,2Gi ttl=86400{' in=strict' if queue else ''}")

        self.play("queue filler idle=notify after=7200")
        # What is free is filled, so that who comes later can only borrow.
        for share in ("0.5,1Gi", "0.1,1Gi", "0.05,1Gi"):
            for number in range(100 * scale):
                self.play(f"allocate filler-{share}-{number} {share} queue=no in=filler ttl=86400")
                if f"filler-{share}-{number}" not in self._leases:
                    break

    def _ask(self, name: str, kind: str, plan: Plan | None, said: str) -> None:
        self.play(f"allocate {name} {said}")
        idler = Idler(name, kind, plan)
        self.idlers.append(idler)
        self._by_id[self._leases[name]] = idler

    def _device(self, name: str) -> Any:
        (uuid,) = self._programs[name][0].memory
        return next(node.devices[uuid] for node in self.world.nodes if uuid in node.devices)

    # -- minute by minute

    def _act(self, minute: int) -> None:
        stories = self.world.auditor.books.stories
        for idler in self.idlers:
            lease_id = self._leases[idler.name]
            story = stories.get(lease_id)
            if story is None or story.ending or story.ended or not story.active:
                continue
            if idler.plan is not None:
                percent = idler.plan(minute, self._random)
                if percent and not idler.percent:
                    self._wakes(lease_id)
                if percent != idler.percent:
                    self._set(idler.name, percent)
                    idler.percent = percent
            # A launcher that keeps its lease alive hears of warnings; some have none.
            seen = self.world.auditor.books.use.seen.get(lease_id)
            if seen is not None and seen.warned > seen.told and not idler.name.endswith("3"):
                self.play(f"told {idler.name} {seen.warned}")
        if minute == 20:
            for number in range(12 * self._scale):
                self.play(f"allocate guest-{number} 0.1,1Gi until=queued opportunistic=yes ttl=86400")

    def _set(self, name: str, percent: int) -> None:
        if name not in self._programs:
            self.play(f"work {name} {percent}")
        for proc in self._programs[name]:
            proc.busy_percent = percent

    def _wakes(self, lease_id: str) -> None:
        """Whoever uses its share is to be gone soon."""
        use = self.world.auditor.books.use
        for piece in self.world.auditor.books.stories[lease_id].pieces.values():
            for slice_id in use.borrowers_of(piece.slice_id):
                self._since_us[slice_id] = self.world.loop.now_us

    def _judge(self, minute: int) -> None:
        stories = self.world.auditor.books.stories
        for idler in self.idlers:
            story = stories.get(self._leases[idler.name])
            if story is None or story.ending or story.ended or not story.active:
                continue
            seen = self.world.auditor.books.use.seen.get(story.lease_id)
            idler.said = seen.state if seen is not None else 0
            idle = idler.kind == "held" or (idler.plan is not None and idler.percent == 0)
            idler.quiet_min = idler.quiet_min + 1 if idle else 0
            if idler.said in QUIET:
                right = idler.quiet_min > 0
                idler.hits += right
                idler.false += not right
            elif idler.quiet_min > SETTLED_MIN:
                idler.missed += 1

    # -- what is heard

    def _counting(self, count: Callable[[list[Any], int], None]) -> Callable[[list[Any], int], None]:
        def counted(facts: list[Any], epoch: int) -> None:
            for fact in facts:
                self._fact(fact)
            count(facts, epoch)

        return counted

    def _fact(self, fact: list[Any]) -> None:
        match fact[0]:
            case "granted":
                for slice_id, _, plan in fact[4]:
                    if plan.get("lender"):
                        self._began_ms[slice_id] = (fact[1], plan["share_milli"])
            case "gone":
                if fact[3] in self._began_ms:
                    self._won(*self._began_ms.pop(fact[3]))
                if fact[3] in self._since_us:
                    since_us = self._since_us.pop(fact[3])
                    self.result.lent_back_ms.append((self.world.loop.now_us - since_us) // 1000)
            case "idleact":
                self.result.ended += 1
                seen = self.world.auditor.books.use.seen.get(fact[2])
                self.result.ended_unwarned += seen is None or not seen.told

    def _won(self, began_ms: int, share: int) -> None:
        self.result.gpu_hours_won += (self.world.auditor.books.at_ms - began_ms) * share / 3_600_000_000

    def _sum_up(self) -> Result:
        found = self.result
        found.leases = len(self.idlers)
        hits, false, missed = (sum(getattr(i, what) for i in self.idlers) for what in ("hits", "false", "missed"))
        found.precision = hits / (hits + false) if hits + false else 1.0
        found.recall = hits / (hits + missed) if hits + missed else 1.0
        found.wrong = {i.name: i.false for i in self._wrong()}
        found.hung = sum(idler.said == 4 for idler in self.idlers if idler.kind == "hung")
        found.loans = self.world.auditor.books.use.loans
        found.violations = self.violations
        return found

    def _wrong(self) -> Iterator[Idler]:
        return (idler for idler in self.idlers if idler.false)
