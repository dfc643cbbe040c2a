"""Limits that are changed behind the agent's back come back within a poll, and jobs live on."""

from __future__ import annotations

from aliquot.agent.enforce.preload_files import LeaseFiles
from aliquot.common.tiers import Tier
from tests.agent.harness import until
from tests.enforce.world import LEASE, LIMIT_BYTES, World


def files_of(world: World) -> LeaseFiles:
    return LeaseFiles(world.folder(), LEASE)


def limit_bytes(world: World) -> int | None:
    found = files_of(world).limit_of(world.device_uuid)
    return None if found is None else found.memory_bytes


def test_a_raised_limit_is_set_right(worlds: dict[Tier, World]) -> None:
    world = worlds[Tier.PRELOAD]
    job = world.probe("--most", "64Mi")
    assert job.answer() is not None
    path = world.folder() / "limit"
    data = path.read_bytes().replace(LIMIT_BYTES.to_bytes(8, "little"), (LIMIT_BYTES * 9).to_bytes(8, "little"))
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(data)
    assert limit_bytes(world) == LIMIT_BYTES * 9
    until(lambda: limit_bytes(world) == LIMIT_BYTES, "the limit is set right")
    assert job.process.poll() is None
    world.settle()


def test_a_limit_that_was_removed_or_damaged_is_made_again(worlds: dict[Tier, World]) -> None:
    world = worlds[Tier.PRELOAD]
    (world.folder() / "limit").unlink()
    until(lambda: limit_bytes(world) == LIMIT_BYTES, "the limit is there again")
    (world.folder() / "limit").chmod(0o644)
    (world.folder() / "limit").write_bytes(b"nonsense")
    until(lambda: limit_bytes(world) == LIMIT_BYTES, "the limit is there again")
    world.settle()


def test_an_account_that_was_cut_short_is_made_again(worlds: dict[Tier, World]) -> None:
    world = worlds[Tier.PRELOAD]
    path = world.folder() / "account"
    path.write_bytes(b"")
    until(lambda: files_of(world).held_bytes(world.device_uuid) == 0, "there is an account again")
    job = world.probe()
    answer = job.answer()
    assert answer is not None
    assert answer["error"] == 2
    assert world.held_bytes(job) <= LIMIT_BYTES
    world.settle()


def test_a_report_says_which_tier_and_frameworks_are_told(worlds: dict[Tier, World]) -> None:
    world = worlds[Tier.PRELOAD]
    job = world.start("env")
    output, _ = job.process.communicate(timeout=30)
    assert "ALIQUOT_TIER=preload" in output
    assert f"LD_PRELOAD={world.folder()}/libaliquot_preload.so" in output
    # Under this tier a framework sees the lease as its device.
    assert "XLA_CLIENT_MEM_FRACTION=0.8750" in output
    world.settle()
