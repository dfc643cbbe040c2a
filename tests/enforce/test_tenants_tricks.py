"""What a tenant can do with its own files and processes, knowing how the agent works."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import Limited
from aliquot.agent.enforce.preload import PreloadEnforcer
from aliquot.common.tiers import Tier
from tests.agent.harness import until
from tests.enforce.cases import verdict_of
from tests.enforce.verdict import Kind
from tests.enforce.world import LEASE, LIMIT_BYTES, NEIGHBOUR, World

GIB = 1 << 30
TAKE_FILE_LEASE = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
account = os.path.join(os.path.dirname(os.environ["LD_PRELOAD"].split(":")[0]), "account")
for kind, flags in ((fcntl.F_RDLCK, os.O_RDONLY), (fcntl.F_WRLCK, os.O_RDWR)):
    try:
        fcntl.fcntl(os.open(account, flags), fcntl.F_SETLEASE, kind)
        print("taken", flush=True)
    except OSError:
        print("refused", flush=True)
time.sleep(120)
"""
TAKE_THEN_ATTACH = """
import sys, time
from aliquot.simgpu.cuda import Cuda
from aliquot.v1 import local_pb2
from tests.agent.localclient import ask
device = Cuda(0)
device.allocate(20 << 30)
print('{"holds": 1}', flush=True)
sys.stdin.readline()
request = local_pb2.AttachRequest(lease_id="l-1", secret=sys.argv[2])
assert ask(sys.argv[1], local_pb2.LocalRequest(attach=request)).HasField("attach")
print('{"attached": 1}', flush=True)
time.sleep(120)
"""


def made_tier(tmp_path: Path) -> tuple[PreloadEnforcer, Limited]:
    info = DeviceInfo("GPU-00000000-0000-0000-0000-000000000001", 0, "NVIDIA A100", "A100-40", "NVIDIA", 40 * GIB, 0)
    tier = PreloadEnforcer(tmp_path / "preload")
    limited = Limited(SliceSpec("l-1.1.0", "l-1", 1, info.uuid, 250, 4 * GIB), info)
    tier.apply(limited)
    return tier, limited


@contextmanager
def file_lease(path: Path, kind: int) -> Iterator[None]:
    """A file lease that is not given back when the kernel asks for it."""
    descriptor = os.open(path, os.O_RDONLY if kind == fcntl.F_RDLCK else os.O_RDWR)
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, 0)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
    try:
        yield
    finally:
        os.close(descriptor)


def returns(call: object) -> bool:
    """Whether a call returns without waiting for somebody who never lets go."""
    assert callable(call)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def test_the_leases_files_take_no_file_lease(worlds: dict[Tier, World]) -> None:
    """By one, the lease's user could have the agent wait for 45 seconds at each look at the account."""
    made = worlds[Tier.PRELOAD]
    program = made.python(TAKE_FILE_LEASE)
    assert program.process.stdout is not None
    assert [program.process.stdout.readline().strip() for _ in range(2)] == ["refused", "refused"]
    assert verdict_of(made, made.probe()).kind is Kind.DENIED


@pytest.mark.root("to take file leases on files of others")
@pytest.mark.parametrize("name", ["account", "limit", "libaliquot_preload.so"])
@pytest.mark.parametrize("kind", [fcntl.F_RDLCK, fcntl.F_WRLCK])
def test_a_file_lease_from_before_the_agent_started_is_not_waited_for(tmp_path: Path, name: str, kind: int) -> None:
    old, limited = made_tier(tmp_path)
    path = Path(old.environment(limited)["LD_PRELOAD"]).with_name(name)
    del old  # with its descriptors: the agent has ended
    with _ignored_sigio(), file_lease(path, kind):
        tier = PreloadEnforcer(tmp_path / "preload")
        assert returns(lambda: tier.observe(limited, 0))
        assert returns(lambda: tier.apply(limited))
        assert tier.read_back(limited)


@contextmanager
def _ignored_sigio() -> Iterator[None]:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGIO, before)


@pytest.mark.root("to set the memory limit of a cgroup")
@pytest.mark.parametrize("tier", [Tier.DRIVER, Tier.PRELOAD, Tier.WATCHDOG])
def test_what_a_process_holds_when_it_attaches_counts(worlds: dict[Tier, World], tier: Tier) -> None:
    made = worlds[tier]
    neighbour = made.probe("--most", "64Mi", lease=NEIGHBOUR)
    assert neighbour.answer() is not None
    program = made.outside(TAKE_THEN_ATTACH)
    assert program.answer() == {"holds": 1}
    until(lambda: made.node.status().devices[0].foreign_bytes > 20 * GIB, "it is foreign memory")
    program.go_on("attach")
    assert program.answer() in ({"attached": 1}, None), "it may be ended before it can say so"
    assert program.ended_within_ms() is not None, "it lives on with what it took before"
    assert neighbour.process.poll() is None
    assert made.held_bytes(program) == 0
    if tier is Tier.DRIVER:
        assert "did not hold slice" in made.node.log


@pytest.mark.root("to set the memory limit of a cgroup")
@pytest.mark.parametrize("limited", [True, False])
def test_a_process_at_the_limit_of_a_tier_that_denies_lives(worlds: dict[Tier, World], *, limited: bool) -> None:
    """Whether or not its context is charged to the limit."""
    made = worlds[Tier.DRIVER]
    made.node.scenario.set(0, contexts_spared=int(not limited))
    program = made.probe()
    assert program.answer() is not None
    held = made.held_bytes(program)
    assert LIMIT_BYTES - held < 256 << 20
    assert (held > LIMIT_BYTES) is not limited
    sampled = made.node.status().devices[0].telemetry.sampled_ms
    until(lambda: made.node.status().devices[0].telemetry.sampled_ms > sampled + 500, "several polls have passed")
    assert program.process.poll() is None
    assert f"did not hold slice {LEASE}.1.0" not in made.node.log.rpartition("attached")[2]
    made.node.scenario.set(0, contexts_spared=0)
