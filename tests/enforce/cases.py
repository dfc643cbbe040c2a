"""The attempts: every way we know of to hold more device memory than a lease has, each by real processes.

A case starts programs in a lease and answers what came of it. It says "denied" only when nothing beyond the limit was
ever booked by the (simulated) driver, whose books are the judge.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from aliquot import simgpu
from aliquot.common.cuda import OUT_OF_MEMORY
from aliquot.common.tiers import Tier
from bench.lib.cuda_ways import WAYS
from tests.enforce import scripts
from tests.enforce.verdict import Verdict, denied, killed, not_run
from tests.enforce.world import LIMIT_BYTES, NEIGHBOUR, STRANGER, Program, World

Case = Callable[[World], Verdict]
PROGRAMS = Path(__file__).parent / "programs"
SIMULATED = Path(simgpu.__file__).parent / "native"
MIB = 1 << 20
STRANGER_UID = 65534
CASES: dict[str, Case] = {}
MPS_OWN: set[str] = set()
"""Titles of those that attack what only `mps` has."""
PRELOADS_OWN: set[str] = set()
"""Titles of those that attack what only the tier `preload` has."""


def case(title: str) -> Callable[[Case], Case]:
    """Register a case under its row in the table."""

    def register(function: Case) -> Case:
        CASES[title] = function
        return function

    return register


def case_of_preload(title: str, what: str) -> Callable[[Case], Case]:
    """The same for an attempt at something of `preload`'s, of which other tiers have none."""

    def register(function: Case) -> Case:
        PRELOADS_OWN.add(title)
        CASES[title] = lambda world: (
            function(world) if world.tier is Tier.PRELOAD else not_run(f"this tier has no {what}")
        )
        return function

    return register


def verdict_of(world: World, program: Program, *others: Program) -> Verdict:
    """Of a program that takes what it can and says how it went."""
    answer = program.answer()
    if answer is None:
        # Ended before it could say anything: it was over the limit before it was done.
        return killed(program.ended_within_ms(), "while it was still taking")
    held = world.held_bytes(program, *others)
    if held > LIMIT_BYTES:
        return killed(program.ended_within_ms(), f"held {held >> 20} MiB of {LIMIT_BYTES >> 20}")
    if not held and answer.get("held_bytes", 0) > LIMIT_BYTES:
        return killed(program.ended_within_ms(), "ended before the driver could be asked what it held")
    if answer["error"] == OUT_OF_MEMORY:
        return denied()
    return Verdict(killed(None).kind, detail=f"took {answer}, the driver has booked {held >> 20} MiB")


def take_by(way: str, lookup: str, world: World) -> Verdict:
    """One way of allocating."""
    return verdict_of(world, world.probe("--way", way, "--lookup", lookup))


for _way in WAYS:
    if _way != "pool_cache":
        CASES[f"allocate: {_way}"] = functools.partial(take_by, _way, "linker")
        CASES[f"allocate: {_way}, by cuGetProcAddress"] = functools.partial(take_by, _way, "proc_address")


@functools.cache
def build(world: World, name: str, source: str, *flags: str) -> Path | str:
    """A C program of programs/, or why it can't be compiled here."""
    compiler = shutil.which("cc")
    if compiler is None:
        return "there is no C compiler"
    output = world.directory / name
    done = subprocess.run(
        [compiler, "-O1", "-o", str(output), str(PROGRAMS / source), *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return f"it does not compile: {done.stderr.strip().splitlines()[-1]}"
    output.chmod(0o755)
    return output


def run_built(world: World, built: Path | str, *arguments: str) -> Verdict:
    """A C program's attempt."""
    if isinstance(built, str):
        return not_run(built)
    return verdict_of(world, world.start(str(built), *arguments))


@case("linked with the driver")
def linked(world: World) -> Verdict:
    return run_built(world, build(world, "linked", "take.c", "-DLINKED", world.driver_path, "-ldl"), "linked")


@case("dlopen and dlsym")
def dlopened(world: World) -> Verdict:
    return run_built(world, build(world, "take", "take.c", "-ldl"), "open", "libcuda.so.1")


@case("dlvsym")
def dlvsymed(world: World) -> Verdict:
    return run_built(world, build(world, "take", "take.c", "-ldl"), "dlvsym", "libcuda.so.1")


@case("dlopen with RTLD_DEEPBIND")
def deepbind(world: World) -> Verdict:
    library = build(world, "libuser.so", "take.c", "-DLINKED", "-DLIBRARY", "-shared", "-fPIC", world.driver_path)
    if isinstance(library, str):
        return not_run(library)
    return run_built(world, build(world, "take", "take.c", "-ldl"), "deepbind", str(library))


@case("dlmopen: a library linked with the driver, in a namespace of its own")
def namespace(world: World) -> Verdict:
    library = build(world, "libuser.so", "take.c", "-DLINKED", "-DLIBRARY", "-shared", "-fPIC", world.driver_path)
    if isinstance(library, str):
        return not_run(library)
    return run_built(world, build(world, "take", "take.c", "-ldl"), "namespace", str(library))


@case("symbol table of the driver read by the program itself")
def tables(world: World) -> Verdict:
    return run_built(world, build(world, "take", "take.c", "-ldl"), "tables", "libcuda.so.1")


@case("static binary")
def static(world: World) -> Verdict:
    """No dynamic linker takes part: the program has the (simulated) driver's own code in it, as one has that talks to
    the kernel by itself.
    """
    sources = [str(path) for folder in ("common", "cuda") for path in sorted((SIMULATED / folder).glob("*.c"))]
    if not sources:
        return not_run("needs the sources of the simulated driver")
    flags = ("-std=c11", "-D_GNU_SOURCE", "-DLINKED", "-static", "-pthread")
    return run_built(world, build(world, "static", "take.c", *sources, *flags), "linked")


@case("setuid binary")
def setuid(world: World) -> Verdict:
    if os.geteuid() != 0:
        return not_run("needs root to make one")
    built = build(world, "setuid", "take.c", "-ldl")
    if isinstance(built, str):
        return not_run(built)
    os.chown(built, STRANGER_UID - 1, -1)
    built.chmod(0o4755)
    try:
        return verdict_of(world, world.start(str(built), "open", world.driver_path))
    finally:
        os.chown(built, 0, -1)


@case("LD_PRELOAD unset")
def unset(world: World) -> Verdict:
    command = ("env", "-u", "LD_PRELOAD", sys.executable, "-m", "aliquot.agent.doctor.probe")
    return verdict_of(world, world.start(*command, "--most", str(6 << 30), "--hold"))


@case("LD_PRELOAD set to another lease's library")
def another_library(world: World) -> Verdict:
    other = world.folder(NEIGHBOUR) / "libaliquot_preload.so"
    command = ("env", f"LD_PRELOAD={other}", sys.executable, "-m", "aliquot.agent.doctor.probe")
    return verdict_of(world, world.start(*command, "--most", str(6 << 30), "--hold"))


@case("environment edited: every variable of ours changed")
def edited(world: World) -> Verdict:
    source = (
        "import os, sys\n"
        "kept = ('LD_LIBRARY_PATH', 'LD_PRELOAD', 'ALIQUOT_SIMGPU', 'PATH', 'PYTHONPATH')\n"
        "big = {n: '99999999999999' for n in os.environ if 'ALIQUOT' in n and n not in kept}\n"
        "os.environ.update(big)\n"
        "probe = ['-m', 'aliquot.agent.doctor.probe', '--most', str(6 << 30), '--hold']\n"
        "os.execv(sys.executable, [sys.executable, *probe])\n"
    )
    return verdict_of(world, world.python(source))


@case("environment edited: another device made visible")
def another_device(world: World) -> Verdict:
    other = world.node.uuids[1]
    command = ("env", f"CUDA_VISIBLE_DEVICES={other}", sys.executable, "-m", "aliquot.agent.doctor.probe")
    started = world.start(*command, "--most", str(64 << 20), "--hold")
    answer = started.answer()
    if answer is not None and answer["error"] == OUT_OF_MEMORY and not world.held_bytes(started):
        return denied()
    return killed(started.ended_within_ms(), "a lease has nothing on that device")


def case_of_mps(title: str) -> Callable[[Case], Case]:
    """For an attempt at something of `mps`, of which other tiers have none."""

    def register(function: Case) -> Case:
        MPS_OWN.add(title)
        CASES[title] = lambda world: function(world) if world.tier is Tier.MPS else not_run("this tier has no server")
        return function

    return register


@case_of_mps("a limit asked for on a GPU that the program can't see")
def unseen(world: World) -> Verdict:
    """NVIDIA's server drops all limits of a client that does so, its own included."""
    command = ("env", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G,1=4G", sys.executable, "-m", "aliquot.agent.doctor.probe")
    return verdict_of(world, world.start(*command, "--most", str(6 << 30), "--hold"))


@case_of_mps("the server's folder not looked for")
def without_server(world: World) -> Verdict:
    command = ("env", "-u", "CUDA_MPS_PIPE_DIRECTORY", sys.executable, "-m", "aliquot.agent.doctor.probe")
    return verdict_of(world, world.start(*command, "--most", str(6 << 30), "--hold"))


@case_of_preload("limit file attacked by the lease's user", "such file")
def limit_file(world: World) -> Verdict:
    if os.geteuid() != 0:
        return not_run("needs root to act as another user")
    built = build(world, "take", "take.c", "-ldl")
    if isinstance(built, str):
        return not_run(built)
    # A lease belongs to the user that first attached to it, here an unprivileged one.
    program = world.start(str(built), "attack", str(world.folder(STRANGER)), lease=STRANGER, uid=STRANGER_UID)
    return verdict_of(world, program)


@case_of_preload("account file forged by the lease's user", "such file")
def account_file(world: World) -> Verdict:
    return verdict_of(world, world.python(scripts.FORGE_ACCOUNT, str(world.folder())))


@case("fork after the driver was initialised")
def fork(world: World) -> Verdict:
    program = world.python(scripts.FORK)
    return family_verdict(world, program)


@case("child of a child")
def grandchild(world: World) -> Verdict:
    return family_verdict(world, world.python(scripts.GRANDCHILD))


@case("program replaced (exec) while it holds memory")
def replaced(world: World) -> Verdict:
    return verdict_of(world, world.python(scripts.EXEC))


def family_verdict(world: World, program: Program) -> Verdict:
    """Of a program whose children take memory too: all that the driver has booked counts."""
    answer = program.answer()
    if answer is None:
        return killed(program.ended_within_ms(), "while it was still taking")
    held = world.held_bytes()
    if held > LIMIT_BYTES:
        return killed(within_limit_ms(world), f"held {held >> 20} MiB together")
    if answer.get("held_bytes", 0) > LIMIT_BYTES:
        return killed(within_limit_ms(world), "ended before the driver could be asked what they held")
    return denied() if answer["error"] == OUT_OF_MEMORY else Verdict(killed(None).kind, detail=str(answer))


def within_limit_ms(world: World) -> int | None:
    """Milliseconds until what is booked is within the limit again."""
    from time import monotonic, sleep

    begun = monotonic()
    while world.held_bytes() > LIMIT_BYTES:
        if monotonic() - begun > 10:
            return None
        sleep(0.005)
    return round((monotonic() - begun) * 1000)


@case("threads racing at the limit")
def threads(world: World) -> Verdict:
    return verdict_of(world, world.python(scripts.THREADS))


@case("processes racing at the limit")
def processes(world: World) -> Verdict:
    return race(world, [world.probe("--piece", str(2 * MIB)) for _ in range(4)])


def race(world: World, racers: Sequence[Program]) -> Verdict:
    """Of programs that take what they can at the same time: all that the driver has booked counts."""
    answers = [racer.answer() for racer in racers]
    held = world.held_bytes()
    if held > LIMIT_BYTES:
        return killed(within_limit_ms(world), f"held {held >> 20} MiB together")
    if sum(answer["held_bytes"] for answer in answers if answer is not None) > LIMIT_BYTES:
        return killed(within_limit_ms(world), "ended before the driver could be asked what they held")
    if all(answer is not None and answer["error"] == OUT_OF_MEMORY for answer in answers):
        return (
            denied() if held > LIMIT_BYTES - 8 * MIB else Verdict(killed(None).kind, detail=f"only {held} were given")
        )
    return killed(within_limit_ms(world), "some were ended")


def in_parts(world: World, *, limited: bool = False) -> Verdict:
    """Two cgroups below the lease's own, and a program in each that takes what it can. `limited`: each with the lease's
    limit set on itself, as NVIDIA's toolkit does for a container that asks for it.
    """
    own = world.cgroup() if os.geteuid() == 0 else None
    if own is None:
        return not_run("needs root, and a cgroup for the lease")
    parts = [Path(tempfile.mkdtemp(prefix="part-", dir=own)) for _ in range(2)]
    for part in parts:
        if limited:
            command = [sys.executable, "-c", scripts.SET_LIMIT, world.device_uuid, str(part), str(LIMIT_BYTES)]
            subprocess.run(command, env=world.node.base_environment(), check=True)
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    probe = (sys.executable, "-m", "aliquot.agent.doctor.probe", "--most", str(6 << 30), "--hold")
    return race(world, [world.start("sh", "-c", enter, str(part), *probe, "--piece", str(2 * MIB)) for part in parts])


CASES["two cgroups made below the lease's own"] = in_parts


@case("two containers below the lease's cgroup, each with a limit of its own")
def limited_parts(world: World) -> Verdict:
    if world.tier is not Tier.DRIVER:
        return not_run("this tier has no such limits")
    return in_parts(world, limited=True)


@case("kill -9, then the memory used again")
def kill_and_reuse(world: World) -> Verdict:
    first = world.probe()
    answer = first.answer()
    if answer is None:
        return killed(first.ended_within_ms())
    if world.held_bytes(first) > LIMIT_BYTES:
        return killed(first.ended_within_ms())
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = world.probe()
    again = second.answer()
    if again is None or again["held_bytes"] < answer["held_bytes"]:
        return Verdict(killed(None).kind, detail=f"{again} after {answer}")
    return denied() if world.held_bytes(second) <= LIMIT_BYTES else killed(second.ended_within_ms())


@case_of_preload("more processes than the account has slots", "slots")
def slots(world: World) -> Verdict:
    source = scripts.FILL_SLOTS
    return verdict_of(world, world.python(source, str(world.folder())))


@case("double free")
def double_free(world: World) -> Verdict:
    return verdict_of(world, world.python(scripts.DOUBLE_FREE))


@case("free of a foreign pointer")
def foreign_free(world: World) -> Verdict:
    return verdict_of(world, world.python(scripts.FOREIGN_FREE))


@case("pool that keeps freed memory, then other allocations")
def pool_cache(world: World) -> Verdict:
    return verdict_of(world, world.python(scripts.POOL_CACHE))


@case("handle released while its memory is mapped")
def mapped(world: World) -> Verdict:
    return verdict_of(world, world.probe("--way", "vmm", "--piece", str(512 * MIB)))


@case("contexts, many of them")
def contexts(world: World) -> Verdict:
    return verdict_of(world, world.python(scripts.CONTEXTS))


@case("IPC: imported memory, while its owner holds it")
def ipc(world: World) -> Verdict:
    """Counted once: an importer of what fills the lease is not refused, and nothing more is to be had."""
    owner = world.python(scripts.IPC_OWNER)
    answer = owner.answer()
    if answer is None:
        return killed(owner.ended_within_ms(), "\n".join(owner.said))
    importer = world.python(scripts.IPC_IMPORTER, answer["handle"])
    imported = importer.answer()
    if imported is None:
        return killed(importer.ended_within_ms(), "\n".join(importer.said))
    if imported["import_error"]:
        return Verdict(killed(None).kind, detail=f"the import was refused: {imported}")
    if world.held_bytes() > LIMIT_BYTES:
        return killed(within_limit_ms(world))
    return denied() if imported["error"] == OUT_OF_MEMORY else Verdict(killed(None).kind, detail=str(imported))


@case("IPC: imported memory that outlives its owner")
def ipc_orphan(world: World) -> Verdict:
    owner = world.python(scripts.IPC_OWNER)
    answer = owner.answer()
    if answer is None:
        return killed(owner.ended_within_ms(), "\n".join(owner.said))
    importer = world.python(scripts.IPC_IMPORTER, answer["handle"], "--then-take")
    if importer.answer() is None:
        return killed(importer.ended_within_ms(), "\n".join(importer.said))
    owner.process.kill()
    owner.process.wait()
    importer.go_on("take")
    return verdict_of(world, importer)


@case("IPC: imported memory that its owner frees")
def ipc_freed(world: World) -> Verdict:
    owner = world.python(scripts.IPC_FREED_BY_OWNER)
    answer = owner.answer()
    if answer is None:
        return killed(owner.ended_within_ms(), "\n".join(owner.said))
    importer = world.python(scripts.IPC_IMPORTER, answer["handle"], "--then-take")
    if importer.answer() is None:
        return killed(importer.ended_within_ms(), "\n".join(importer.said))
    owner.go_on("free")
    taken = owner.answer()
    if taken is None or world.held_bytes() > LIMIT_BYTES:
        return killed(within_limit_ms(world), f"held {world.held_bytes() >> 20} MiB together")
    return denied() if taken["error"] == OUT_OF_MEMORY else Verdict(killed(None).kind, detail=str(taken))


for _title, _script in {
    "graph node of an impossible size": scripts.GRAPH_OVERFLOW,
    "memory freed on a stream that is busy": scripts.FREED_ON_BUSY_STREAM,
    "memory freed in a capture": scripts.FREED_IN_CAPTURE,
    "memory exported by a descriptor, its handle released": scripts.EXPORTED,
    "captured on the default stream of a thread": scripts.CAPTURED_BY_THREAD,
    "memory in a part of the device (locality domain)": scripts.IN_A_PART_OF_THE_DEVICE,
    "heap promised to one context, another one ended": scripts.HEAP_AND_CONTEXTS,
}.items():
    CASES[_title] = functools.partial(lambda script, world: verdict_of(world, world.python(script)), _script)
