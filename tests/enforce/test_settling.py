"""The tests' own helpers leave no process behind, whatever a test has left them in."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.common.tiers import Tier
from tests.agent.harness import Node, until
from tests.agent.serving import install, remote
from tests.enforce.world import World


def named(folder: Path) -> list[str]:
    """The command lines that name something in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdecimal() else ""
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_a_world_that_can_not_be_made_is_closed_again(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="held by"):
        World(tmp_path / "world", Tier.PRELOAD, environment={"ALIQUOT_AGENT_ENFORCEMENT_TIERS": "watchdog"})
    assert not named(tmp_path)


def test_a_node_that_can_not_be_cleared_away_ends_its_processes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = World(tmp_path / "world", Tier.WATCHDOG)
    job = made.start("sleep", "600")
    until(lambda: bool(made.node.status().slices), "it runs")

    def fails(self: Node) -> None:
        raise OSError("a cgroup can't be removed")

    with monkeypatch.context() as patched:
        patched.setattr(Node, "_remove_cgroups", fails)
        with pytest.raises(OSError, match="can't be removed"):
            made.close()
    assert job.process.poll() is not None
    assert not named(tmp_path)
    made.node._remove_cgroups()


@pytest.mark.parametrize("containment", ["auto", "process_group"])
def test_a_service_of_an_agent_that_was_killed_ends_with_its_node(tmp_path: Path, containment: str) -> None:
    made = World(tmp_path / "world", Tier.WATCHDOG, environment={"ALIQUOT_AGENT_CONTAINMENT": containment})
    try:
        made.node.kill9()
        install(made.node, tmp_path)
        known = len(made.coordinator.snapshots)
        made.node.start(made.coordinator.address)
        until(lambda: len(made.coordinator.snapshots) > known, "another session")
        made.order(remote(made.device_uuid, slice_id="l-9.1.0", lease_id="l-9"))
        assert made.node.hosted()
        made.node.kill9()
    finally:
        made.close()
    until(lambda: not made.node.hosted(), "what was killed has gone")
