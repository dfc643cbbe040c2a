"""Proves each tier on this node: a scratch lease of one GiB, and a program that tries to hold two.

Only our own scratch program is ever limited or signalled, and only memory that is free is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from aliquot.agent.core.model import Holder, ProcessKey, SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.devices.base import DeviceBackend, DeviceError
from aliquot.agent.doctor.checks import NODE_NAME, Finding, Mark
from aliquot.agent.enforce import proofs
from aliquot.agent.enforce.assembly import assemble
from aliquot.agent.enforce.base import Cgroups, EnforcementError, Enforcer, Limited
from aliquot.agent.enforce.by_vendor import ByVendor
from aliquot.agent.enforce.dmem import DmemEnforcer, proof_name
from aliquot.agent.enforce.mps import MpsEnforcer
from aliquot.agent.enforce.prerequisites import CudaDriver, why_unmeasured
from aliquot.agent.processes import proc as processes
from aliquot.agent.processes.cgroups import CgroupTree, ContainmentError
from aliquot.agent.processes.signals import Outcome, PidFds, Signaller, Target
from aliquot.common.cuda import OUT_OF_MEMORY
from aliquot.common.tiers import Tier

LIMIT_BYTES = 1 << 30
ATTEMPT_BYTES = 2 << 30
ATTEMPT_TIMEOUT_S = 60.0
SLACK_BYTES = 256 << 20
"""What others may take of a card meanwhile."""
HOLDER = Holder("doctor", 1, 0)
NOT_RUN = "the program that was to try it did not run: is the vendor's driver for programs installed?"
UNTRIED = "offered, and not tried: there is no program here that could take this device's memory"


def prove(
    backend: DeviceBackend, device: DeviceInfo, directory: Path, names: tuple[str, ...], proven: Path | None = None
) -> Iterator[Finding]:
    """Try each of the named tiers on a device. `directory` is a scratch folder; `proven`: where it is written down what
    was proven, see `enforce.proofs`.
    """
    free_bytes = _free_bytes(backend, device)
    if free_bytes < ATTEMPT_BYTES:
        text = f"{free_bytes >> 20} MiB are free on {device.uuid}, {ATTEMPT_BYTES >> 20} are needed to try the tiers"
        yield Finding("tiers", Mark.NOTE, text)
        return
    tree, why_not = _tree()
    cuda = CudaDriver()
    cuda.look()
    enforcers = assemble(
        names,
        directory=directory,
        throttle=False,
        blind=lambda uuid: why_unmeasured(backend.processes(uuid)),
        powerless=PidFds().available,
        own=backend.enforcers(
            Cgroups(lambda: why_not, lambda: "" if tree is None else tree.base, proven, proving=True)
        ),
        unusable=lambda device: backend.unusable(device) or cuda.why_not(device),
    )
    cgroup = tree.path_of(HOLDER) if tree is not None else None
    whole = SliceSpec("doctor.1.0", "doctor", 1, device.uuid, 1000, device.leasable_bytes)
    part = SliceSpec("doctor.1.0", "doctor", 1, device.uuid, 100, LIMIT_BYTES)
    for enforcer in sorted(enforcers, key=lambda each: -each.tier):
        if enforcer.tier is Tier.NONE:
            continue
        limited = Limited(whole if enforcer.tier is Tier.MIG else part, device, cgroup)
        yield _prove_one(backend, enforcer, limited, tree, proven)
    if tree is not None:
        tree.remove(HOLDER)
        tree.close()


def _prove_one(
    backend: DeviceBackend, enforcer: Enforcer, limited: Limited, tree: CgroupTree | None, proven: Path | None
) -> Finding:
    subject = f"tier {enforcer.tier.word}"
    try:
        problem = enforcer.available(limited)
        if problem:
            return Finding(subject, Mark.NOTE, f"can't be had: {problem}")
        enforcer.apply(limited)
        held = enforcer.of(limited) if isinstance(enforcer, ByVendor) else enforcer
        if not enforcer.read_back(limited):
            if isinstance(held, DmemEnforcer) and proven is not None:
                proofs.write(proven, proof_name(limited.device), None)
            return Finding(subject, Mark.BAD, "the limit was set, but is not there when read back")
        if not (program := backend.probe(limited.device)):
            return Finding(subject, Mark.NOTE, UNTRIED)
        if enforcer.tier is Tier.WATCHDOG:
            return _prove_watchdog(backend, program, limited)
        if isinstance(held, DmemEnforcer):
            return _prove_held(backend, program, held, limited, tree, proven)
        found = _prove_denial(backend, program, enforcer, limited, tree)
        if isinstance(enforcer, MpsEnforcer):
            return replace(found, text=f"{found.text}; {enforcer.described(limited)}")
        return found
    except (EnforcementError, DeviceError) as error:
        return Finding(subject, Mark.BAD, error.message)
    finally:
        with contextlib.suppress(EnforcementError, DeviceError):  # what was found says more than this
            enforcer.clear(limited)


class _Attempt:
    """The program that tries, started only once it is where it belongs."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str], most_bytes: int) -> None:
        words = [sys.executable, "-m", *program, "--most", str(most_bytes), "--hold"]
        self.process = subprocess.Popen(  # noqa: S603  our own words only
            ["/bin/sh", "-c", 'read go && exec "$@"', "sh", *words],
            env=os.environ | dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._timer = threading.Timer(ATTEMPT_TIMEOUT_S, self.process.kill)
        self._timer.start()

    def go(self) -> dict[str, int] | None:
        """What it says; None: it ended without a word."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line.startswith("{") else None

    def end(self) -> None:
        """Over, whatever came of it."""
        self._timer.cancel()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def _prove_denial(
    backend: DeviceBackend,
    program: Sequence[str],
    enforcer: Enforcer,
    limited: Limited,
    tree: CgroupTree | None,
) -> Finding:
    limit_bytes, subject = limited.spec.memory_bytes, f"tier {enforcer.tier.word}"
    variables = dict(backend.visibility([limited.device])) | dict(enforcer.environment(limited))
    own_cgroups = tree if enforcer.tier is Tier.DRIVER else None

    def tried(*parts: str) -> list[dict[str, int] | None]:
        """Programs in these parts of the leaf take what they can, one after the other, and hold it."""
        with contextlib.ExitStack() as ending:
            attempts = []
            for part in parts:
                attempt = _Attempt(program, variables, limit_bytes + LIMIT_BYTES)
                ending.callback(attempt.end)
                attempts.append(attempt)
                if own_cgroups is not None:
                    own_cgroups.add(attempt.process.pid, HOLDER, part)
                    enforcer.apply(limited)
            return [attempt.go() for attempt in attempts]

    try:
        (answer,) = tried("")
        if answer is None:
            return Finding(subject, Mark.BAD, NOT_RUN)
        text = f"{answer['held_bytes'] >> 20} MiB beside its context, of {limit_bytes >> 20} MiB"
        if answer["error"] != OUT_OF_MEMORY or answer["held_bytes"] >= limit_bytes:
            return Finding(subject, Mark.BAD, f"did not hold: a program came to {text} (error {answer['error']})")
        if own_cgroups is not None:
            held_bytes = sum(each["held_bytes"] for each in tried("one", "other") if each is not None)
            if held_bytes >= limit_bytes:
                held = f"{held_bytes >> 20} MiB of {limit_bytes >> 20}"
                return Finding(subject, Mark.BAD, f"did not hold: programs in two parts of the cgroup came to {held}")
            text += f", and to {held_bytes >> 20} MiB in two parts of its cgroup"
    except ContainmentError as error:
        return Finding(subject, Mark.BAD, error.message)
    return Finding(subject, Mark.GOOD, f"proven: denied at {text}")


def _prove_held(
    backend: DeviceBackend,
    program: Sequence[str],
    enforcer: DmemEnforcer,
    limited: Limited,
    tree: CgroupTree | None,
    path: Path | None,
) -> Finding:
    """A limit that denies nothing and still holds: what is too much for it goes elsewhere. It counts as proven once the
    kernel has booked memory on the cgroup, and no more than the limit; that is written down, for the agent.
    """
    limit_bytes, subject = limited.spec.memory_bytes, f"tier {enforcer.tier.word}"
    if tree is None:
        return Finding(subject, Mark.NOTE, UNTRIED)
    before_bytes = backend.memory(limited.device.uuid).used_bytes or 0
    attempt = _Attempt(program, {}, limit_bytes + LIMIT_BYTES)
    try:
        tree.add(attempt.process.pid, HOLDER)
        answer = attempt.go()
        charged_bytes = enforcer.charged_bytes(limited)
        grown_bytes = (backend.memory(limited.device.uuid).used_bytes or 0) - before_bytes
    except ContainmentError as error:
        return Finding(subject, Mark.BAD, error.message)
    finally:
        attempt.end()
    if answer is None:
        return Finding(subject, Mark.BAD, NOT_RUN)
    if not charged_bytes:
        problem = "the kernel books nothing of a program's memory on its cgroup"
    elif charged_bytes > limit_bytes or grown_bytes > limit_bytes + SLACK_BYTES:
        problem = f"did not hold: {max(charged_bytes, grown_bytes) >> 20} MiB of {limit_bytes >> 20}"
    else:
        problem = ""
    text = f"proven: held at {charged_bytes >> 20} MiB of {limit_bytes >> 20}, asked for {answer['held_bytes'] >> 20}"
    if path is not None:
        proof = proofs.Proof(enforcer.kernel, text)
        proofs.write(path, proof_name(limited.device), None if problem else proof)
    return Finding(subject, Mark.BAD, problem) if problem else Finding(subject, Mark.GOOD, text)


def _prove_watchdog(backend: DeviceBackend, program: Sequence[str], limited: Limited) -> Finding:
    subject = f"tier {Tier.WATCHDOG.word}"
    attempt = _Attempt(program, backend.visibility([limited.device]), ATTEMPT_BYTES)
    try:
        if attempt.go() is None:
            return Finding(subject, Mark.BAD, NOT_RUN)
        begun = time.monotonic()
        pid = attempt.process.pid
        listed = {each.pid: each.memory_bytes for each in backend.processes(limited.device.uuid).processes}
        if (listed.get(pid) or 0) <= LIMIT_BYTES:
            return Finding(
                subject, Mark.BAD, f"{backend.name} does not show what a process holds here (it says {listed.get(pid)})"
            )
        key = processes.key_of(pid)
        outcome = _signal(key) if key is not None else Outcome.GONE
        attempt.process.wait(10)
        took_ms = (time.monotonic() - begun) * 1000
    except subprocess.TimeoutExpired:
        return Finding(subject, Mark.BAD, "the program did not end when told to")
    finally:
        attempt.end()
    if outcome is not Outcome.SENT:
        return Finding(subject, Mark.BAD, f"the program could not be signalled: {outcome.value}")
    return Finding(subject, Mark.GOOD, f"proven: seen over its limit and ended within {took_ms:.0f} ms of the look")


def _signal(key: ProcessKey) -> Outcome:
    own = Signaller(belongs=lambda pid, _: pid == key.pid, held=lambda holder: holder == HOLDER)
    return own.send(Target(key, HOLDER, "the doctor's own program, over its scratch lease"), signal.SIGTERM)


def _free_bytes(backend: DeviceBackend, device: DeviceInfo) -> int:
    try:
        memory = backend.memory(device.uuid)
    except DeviceError:
        return 0
    return max(0, memory.total_bytes - memory.reserved_bytes - (memory.used_bytes or 0))


def _tree() -> tuple[CgroupTree | None, str]:
    try:
        return CgroupTree.open(NODE_NAME), ""
    except ContainmentError as error:
        return None, error.explain()
