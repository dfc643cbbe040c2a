"""Cards of four vendors in one pool: exact parts of each, and a cheat on each, held by the tier that it has there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from aliquot.cli.demo.jobs import JobSpec
from aliquot.cli.localpool import LocalPool
from aliquot.cli.localpool.children import clean_environment
from aliquot.cli.top.snapshot import observe
from aliquot.client import HeldLease, LeaseState, NeverFits, Pool, Slice, Tier
from aliquot.common.own_files import make_private
from tests.client.real_pool import real_pool
from tests.polling import eventually

CARDS = ("--drm", "MI300X,B60", "--ascend", "910B3", "--cut", "0:vir05_1c_16g:100", "--cut", "0:vir10_3c_32g:102")
"""Beside two of NVIDIA's: one of AMD, one of Intel, and two virtual NPUs of one Ascend chip."""
NEIGHBOURS = (
    JobSpec("detect", "vision", "0.5(nvidia),16Gi", ("10Gi",)),
    JobSpec("caption", "vision", "0.5(MI300X),64Gi", ("40Gi",)),
    JobSpec("upscale", "speech", "0.5(intel),10Gi", ("8Gi",)),
    JobSpec("translate", "speech", "vir10_3c_32g(ascend:910B3)", ("20Gi",)),
)
CHEATS = (
    JobSpec("nvidia", "speech", "0.25(nvidia),6Gi", ("3Gi",), grows_by="2Gi"),
    JobSpec("amd", "speech", "0.25(amd),16Gi", ("10Gi",), grows_by="8Gi"),
    JobSpec("intel", "vision", "0.25(intel),4Gi", ("2Gi",), grows_by="1Gi"),
    JobSpec("npu", "vision", "vir05_1c_16g(ascend)", ("10Gi",), grows_by="4Gi"),
)
OUT_OF_MEMORY = 3


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], check=False, capture_output=True, text=True, env=clean_environment({})
    )
    assert done.stdout, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cards")


@pytest.fixture(scope="module")
def pool(cards: Path) -> Iterator[Pool]:
    made = json.loads(run("aliquot.simgpu.vendors", str(cards), *CARDS))
    broken = cards / "libhlml.so"
    broken.write_text("not a library\n")
    settings = {**made["variables"], "ALIQUOT_AGENT_DEVICES": f"nvml,{made['devices']},gaudi:{broken}"}

    def prove(local: LocalPool) -> None:
        """The kernel's limits are used once the doctor has proved them."""
        local.layout.make()
        state = local.layout.node(local.plan.node_names()[0])
        make_private(state)
        run("aliquot.cli", "doctor", "--json", "--devices", f"drm:{cards / 'drm'}", "--state-dir", str(state))

    with (
        real_pool(nodes=1, gpus=2, tiers="", settings=settings, before=prove) as local,
        local.connect() as connected,
    ):
        yield connected


def start(pool: Pool, plan: JobSpec, cards: Path, logs: Path) -> tuple[HeldLease, subprocess.Popen[bytes], str]:
    """The lease, the program, and the vendor: on NVIDIA's cards CUDA's program, elsewhere what stands for another."""
    lease = pool.lease(plan.gpu, tenant=plan.tenant, name=plan.name, grace_s=5, wait_s=30.0)
    uuid = lease.slices[0].device_uuid
    vendor = next(device.vendor for device in pool.devices() if device.uuid == uuid)
    module = ["aliquot.simgpu.burn"] if vendor == "nvidia" else ["aliquot.simgpu.vendors.hold", str(cards)]
    command = [sys.executable, "-m", *module, "--bytes", plan.uses[0], "--device", "0", "--seconds", "300"]
    command += ["--grow", plan.grows_by, "--step-seconds", "0.5"] if plan.grows_by else []
    with (logs / plan.name).open("wb") as log:
        return lease, lease.popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log), vendor


def test_a_kind_whose_library_is_broken_is_told_and_takes_nothing_from_the_others(pool: Pool) -> None:
    devices = [device for device in pool.devices() if device.healthy]
    assert len(devices) == 6
    assert {device.vendor for device in devices} == {"nvidia", "amd", "intel", "npu"}
    assert any("gaudi" in note for agent in pool.agents for note in agent.info().notes)
    with pytest.raises(NeverFits, match="devices of Gaudi"):
        pool.lease("1(gaudi)", tenant="vision")


def test_a_cheat_on_each_is_held_and_no_neighbour_is_touched(pool: Pool, cards: Path, tmp_path: Path) -> None:
    neighbours = [start(pool, plan, cards, tmp_path) for plan in NEIGHBOURS]
    cheats = {plan.name: start(pool, plan, cards, tmp_path) for plan in CHEATS}
    assert [name for name, (_, _, vendor) in cheats.items() if vendor != name] == []
    for name, (lease, program, _) in cheats.items():
        part = lease.slices[0]
        if name in {"amd", "intel"} and part.tier is Tier.DRIVER:
            # Under `dmem` nothing is denied: what is too much goes to the machine's memory.
            eventually(partial(_asked_for_more, tmp_path / name))
            eventually(partial(_held_within, pool, part))
        elif part.tier is Tier.WATCHDOG:
            assert program.wait(60) < 0
        else:
            assert program.wait(60) == OUT_OF_MEMORY
    assert cheats["npu"][0].slices[0].tier is Tier.MIG
    assert all(lease.refresh().state is LeaseState.ACTIVE for lease, _, _ in neighbours)
    assert [plan.name for plan, (_, program, _) in zip(NEIGHBOURS, neighbours, strict=True) if program.poll()] == []
    for lease, program, _ in (*neighbours, *cheats.values()):
        lease.release(wait_gone=True, timeout_s=30)
        program.wait(30)
    assert not any(device.leased_memory_bytes for device in pool.devices())


def _asked_for_more(log: Path) -> bool:
    return log.read_text().count("bytes)") > 3


def _held_within(pool: Pool, part: Slice) -> bool:
    return 0 < (observe(pool).get(part.slice_id) or 0) <= part.memory_bytes
