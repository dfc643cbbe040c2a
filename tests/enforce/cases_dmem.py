"""The same against the kernel's limits on cgroups (`dmem`): every way we know of to hold more than a lease has.

Programs, their cgroups and the agent are real; the card and the controller are the model of `aliquot.simgpu.drm`, whose
books are the judge. Not run on hardware. The kernel does not deny: what is too much goes to the machine's memory, so
the good end of an attempt is that the card never held too much.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from aliquot.agent.enforce import proofs
from aliquot.common.kernel_files import MOUNTINFO, find_mount
from aliquot.common.tiers import Tier
from aliquot.simgpu.drm import Machine, create
from tests.agent.harness import until
from tests.enforce.verdict import Verdict, denied, kept_off, killed, not_run
from tests.enforce.world import LIMIT_BYTES, NEIGHBOUR, SPAN_S, Program, World

MIB, GIB = 1 << 20, 1 << 30
KERNEL = "6.14.0-simulated"
"""What the simulated machine calls its own."""
MOST = str(LIMIT_BYTES * 3 // 2)


class DmemWorld(World):
    """A node with two cards of AMD's and Intel's, and a lease on the first."""

    def __init__(self, directory: Path, poll_ms: int = 100) -> None:
        self.machine: Machine = create(directory / "machine", ["MI210", "B580"])
        self._uuid = ""
        environment = {"ALIQUOT_AGENT_DEVICES": f"drm:{self.machine.root}", "ALIQUOT_SIMGPU": ""}
        super().__init__(directory, Tier.DRIVER, poll_ms, environment)

    def _begin(self, *args: object, **options: object) -> None:
        for vendor in ("amd", "intel"):
            proofs.write(self.node.state_dir / "proofs.json", f"dmem/{vendor}", proofs.Proof(KERNEL))
        self.node.state_dir.chmod(0o700)
        super()._begin(*args, **options)  # type: ignore[arg-type]

    @property
    def device_uuid(self) -> str:
        """Of AMD's card."""
        if not self._uuid:
            until(lambda: bool(self.coordinator.snapshots), "a snapshot")
            devices = self.coordinator.snapshots[-1].node.devices
            self._uuid = next(device.uuid for device in devices if device.vendor == "amd")
        return self._uuid

    def held_bytes(self, *programs: Program) -> int:
        """On the cards, by these programs (default: by everybody)."""
        pids = {program.pid for program in programs}
        return sum(held.memory_bytes for held in self.machine.books().held if not pids or held.pid in pids)

    def held_by_lease(self, card: int = 0) -> int:
        """What is on a card of all that the lease's cgroups ever held, whoever has it now."""
        books = self.machine.books()
        address = books.cards[card].address
        own = (held for held in books.held if f"/{self.lease}/" in f"{held.cgroup}/" and held.address == address)
        return sum(held.memory_bytes for held in own)

    def spilled_bytes(self) -> int:
        """What is in the machine's memory instead."""
        return sum(held.spilled_bytes for held in self.machine.books().held)

    def taker(self, *arguments: str, card: int = 0, most: str = MOST) -> tuple[str, ...]:
        """A program's words that takes memory of a card."""
        minor = self.machine.books().cards[card].parts[0].minor
        command = (sys.executable, "-m", "aliquot.simgpu.drm.hold", str(self.machine.root), "--minor", str(minor))
        return (*command, "--most", most, "--hold", *arguments)

    def leaf(self) -> str:
        """The lease's cgroup, from the root of the hierarchy."""
        ends = f"/{self.lease}/1.0"
        return next(group for group in self.machine.books().groups if group.endswith(ends))


Case = Callable[[DmemWorld], Verdict]
CASES: dict[str, Case] = {}


def case(title: str) -> Callable[[Case], Case]:
    """Register a case under its row in the table."""

    def register(function: Case) -> Case:
        CASES[title] = function
        return function

    return register


def verdict_of(world: DmemWorld, *programs: Program) -> Verdict:
    """Of programs that take what they can and say how it went."""
    answers = [program.answer() for program in programs]
    if all(answer is None for answer in answers):
        return killed(programs[0].ended_within_ms(), "while it was still taking")
    held = world.held_by_lease()
    if held > LIMIT_BYTES or world.held_bytes(*programs) > LIMIT_BYTES:
        return killed(programs[0].ended_within_ms(), f"held {held >> 20} MiB of {LIMIT_BYTES >> 20}")
    spilled = world.spilled_bytes()
    return kept_off(f"{spilled >> 20} MiB are in the machine's memory") if spilled else denied()


def by(world: DmemWorld, *words: str) -> Verdict:
    """One program, in the lease."""
    return verdict_of(world, world.start(*words))


@case("piece by piece")
def pieces(world: DmemWorld) -> Verdict:
    return by(world, *world.taker())


@case("one buffer larger than the limit")
def one_buffer(world: DmemWorld) -> Verdict:
    return by(world, *world.taker("--piece", MOST))


@case("child of a child")
def grandchild(world: DmemWorld) -> Verdict:
    # Shells that wait for it, and do not become it.
    return by(world, "sh", "-c", 'sh -c \'"$@"; true\' sh "$@"; true', "sh", *world.taker())


@case("environment edited: every variable of ours removed")
def without_environment(world: DmemWorld) -> Verdict:
    kept = [f"{name}={os.environ[name]}" for name in ("PATH", "HOME") if name in os.environ]
    return by(world, "env", "-i", *kept, *world.taker())


@case("processes racing at the limit")
def race(world: DmemWorld) -> Verdict:
    return verdict_of(world, *[world.start(*world.taker("--piece", str(32 * MIB), most="2Gi")) for _ in range(4)])


@case("kill -9, then the memory used again")
def kill_and_reuse(world: DmemWorld) -> Verdict:
    first = world.start(*world.taker())
    first.answer()
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    return by(world, *world.taker())


@case("an open file handed to a program outside the lease")
def handed_on(world: DmemWorld) -> Verdict:
    program = world.start(*world.taker())
    verdict = verdict_of(world, program)
    (held,) = [each for each in world.machine.books().held if each.pid == program.pid]
    world.machine.share(held.client_id, os.getpid())
    try:
        world.machine.more(held.client_id, GIB)
        return verdict if world.held_by_lease() <= LIMIT_BYTES else killed(None)
    finally:
        world.machine.end(os.getpid())


@case("a cgroup made below the lease's own")
def below(world: DmemWorld) -> Verdict:
    script = 'mkdir -p "$0/own" && echo $$ > "$0/own/cgroup.procs" && exec "$@"'
    directory = real(world)
    if isinstance(directory, Verdict):
        return directory
    return by(world, "sh", "-c", script, str(directory), *world.taker())


@case("left for another cgroup, by a tenant who is root")
def left(world: DmemWorld) -> Verdict:
    directory = real(world)
    if isinstance(directory, Verdict):
        return directory
    mount = find_mount(MOUNTINFO.read_text())
    assert mount is not None
    script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    return by(world, "sh", "-c", script, str(mount.directory), *world.taker())


def real(world: DmemWorld) -> Path | Verdict:
    """The lease's real cgroup."""
    mount = find_mount(MOUNTINFO.read_text())
    if mount is None or os.geteuid() != 0:
        return not_run("needs root and cgroup v2")
    return world.cgroup() or not_run("its cgroup can't be seen from here")


@case("another card, of which the lease has nothing")
def another_card(world: DmemWorld) -> Verdict:
    program = world.start(*world.taker(card=1, most="1Gi"))
    answer = program.answer()
    # No answer: ended while it was still taking, whatever the books say of it by now.
    return killed(program.ended_within_ms()) if answer is None or answer["held_bytes"] else denied()


@case("the limit's file written, by a tenant who is root")
def rewritten(world: DmemWorld) -> Verdict:
    """The agent looks at limits again and again; what is too much until then is the time told."""
    program = world.start(*world.taker())
    program.answer()
    leaf = world.leaf()
    with world.machine.changed() as books:
        books.limits.pop(leaf, None)
    begun = time.monotonic()
    while time.monotonic() - begun < SPAN_S:
        if world.machine.books().limits.get(leaf):
            return kept_off(f"the limit was back after {round((time.monotonic() - begun) * 1000)} ms")
        time.sleep(0.01)
    return killed(None, "the limit was not set again")


@case("the driver loaded again, and its limits gone")
def reloaded(world: DmemWorld) -> Verdict:
    world.machine.unload(0)
    world.machine.load(0)
    begun = time.monotonic()
    while not world.machine.books().limits.get(world.leaf()):
        if time.monotonic() - begun > SPAN_S:
            return killed(None, "the limit was not set again")
        time.sleep(0.01)
    return by(world, *world.taker())


@case("a neighbour's part of the card")
def neighbours_part(world: DmemWorld) -> Verdict:
    """All of a lease's, and then as much as a neighbour may have: the neighbour gets it none the less."""
    greedy = world.start(*world.taker("--piece", str(256 * MIB), most="60Gi"))
    verdict = verdict_of(world, greedy)
    neighbour = world.start(*world.taker(most=str(LIMIT_BYTES)), lease=NEIGHBOUR)
    answer = neighbour.answer()
    if answer is None or answer["held_bytes"] != LIMIT_BYTES or answer["spilled_bytes"]:
        books = world.machine.books()
        seen = [(held.pid, held.cgroup, held.memory_bytes, held.spilled_bytes) for held in books.held]
        limits = {group: of for group, of in books.limits.items() if of}
        tier, ended = world.tier_of(NEIGHBOUR), neighbour.process.poll()
        told = f"tier {tier}, ended {ended}, {neighbour.said}; {seen}; {limits}"
        return killed(None, f"the neighbour got {answer}: {told}")
    return verdict
