"""Whom the processes that serve leases run as, and what they have of the machine."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import stat
import sys
from pathlib import Path

import pytest

from aliquot.agent.core.model import Holder
from aliquot.agent.hosting.base import HostError
from aliquot.agent.hosting.folders import Folders
from aliquot.agent.settings import HostingSettings
from aliquot.common.errors import ConfigError
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import ROOT, Node
from tests.agent.serving import ask, install, remote
from tests.agent.test_enforcement_on_processes import grant

ACTIVE = agent_pb2.SLICE_STATUS_ACTIVE
NOBODY = pwd.getpwnam("nobody").pw_uid
UNIT = ROOT / "deploy" / "systemd" / "aliquot-agent.service"
# Where the interpreter's or this project's folder is closed to others, both are shown through one that is not.
OPENED = """
set -e
for closed in "$@"; do
    [ "$closed" = -- ] && break
    mkdir -p "$ROOM$closed"
    mount --rbind "$closed" "$ROOM$closed"
    mount -t tmpfs -o mode=755 none "$closed"
    for kept in $KEPT; do
        case "$kept" in "$closed"/*) mkdir -p "$kept"; mount --rbind "$ROOM$kept" "$kept";; esac
    done
done
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


def as_the_unit_does(room: Path) -> tuple[str, ...]:
    """What runs the agent with the capabilities that its unit leaves it, and an interpreter that others can run."""
    given = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    words = ",".join(["-all", *(f"+{word.removeprefix('CAP_').lower()}" for line in given for word in line.split())])
    limited = ("setpriv", f"--bounding-set={words}", "--no-new-privs")
    kept = [Path(sys.prefix), Path(sys.base_prefix), ROOT]
    closed = {each for path in kept for each in path.parents if not each.stat().st_mode & 0o001}
    if not closed:
        return limited
    names = " ".join(str(path) for path in kept)
    opened = ("env", f"ROOM={room}", f"KEPT={names}", "sh", "-c", OPENED, "sh", *map(str, sorted(closed)), "--")
    return ("unshare", "--mount", *opened, *limited)


@pytest.fixture
def serving(open_node: Node) -> Node:
    """A node on which a service is installed that every user can run."""
    folder = open_node.directory / "service"
    folder.mkdir()
    install(open_node, folder).environment["ALIQUOT_AGENT_HOSTING_USER"] = "nobody"
    folder.chmod(0o777)
    open_node.wrapper = as_the_unit_does(open_node.directory / "room")
    return open_node


@pytest.mark.root("to run processes as somebody else")
@pytest.mark.parametrize("tier", ["watchdog", "preload"])
async def test_a_service_runs_as_nobody_with_what_the_unit_leaves_the_agent(
    serving: Node, coordinator: Coordinator, tier: str
) -> None:
    serving.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = tier
    await grant(serving, coordinator, remote(serving.uuids[0]))
    told = await asyncio.to_thread(ask, (await coordinator.until_status("l-1.1.0", ACTIVE)).endpoint)
    assert told["uid"] == NOBODY
    assert told["ALIQUOT_TIER"] == tier
    assert told["gids"] == [NOBODY], "and in no group of the agent's"
    assert isinstance(told["oom_score_adj"], int)
    assert told["oom_score_adj"] >= 0
    home = str(told["HOME"])
    assert str(told["temporary"]).startswith(f"{home}/tmp/"), "all else is read-only under the unit"
    assert stat.S_IMODE((await asyncio.to_thread(os.stat, home)).st_mode) == 0o700
    coordinator.desire(remote(serving.uuids[0], stop=True))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_GONE)
    assert not await asyncio.to_thread(os.path.exists, home)


@pytest.mark.root("to run processes as somebody else")
@pytest.mark.parametrize("ahead", [False, True])
async def test_each_served_lease_may_have_a_user_of_its_own(
    serving: Node, coordinator: Coordinator, ahead: bool
) -> None:
    serving.environment["ALIQUOT_AGENT_HOSTING_UIDS"] = "345600-345601"
    serving.environment["ALIQUOT_AGENT_HOSTING_AHEAD"] = str(ahead).lower()
    first, second = serving.uuids
    await grant(serving, coordinator, remote(first), remote(second, slice_id="l-2.1.0", lease_id="l-2"))
    uids = []
    for slice_id in ("l-1.1.0", "l-2.1.0"):
        report = await coordinator.until_status(slice_id, ACTIVE)
        uids.append((await asyncio.to_thread(ask, report.endpoint))["uid"])
    assert sorted(map(str, uids)) == ["345600", "345601"]


@pytest.mark.root("to change owners")
def test_a_member_keeps_its_user_and_two_never_have_the_same(tmp_path: Path) -> None:
    holders = [Holder(f"l-{number}", 1, 0) for number in range(4)]
    folders = Folders(tmp_path / "hosts", range(7000, 7003))
    uids = [folders.make(holder)[1] for holder in holders[:3]]
    assert sorted(uids) == [7000, 7001, 7002]
    assert [Folders(tmp_path / "hosts", range(7000, 7003)).make(each)[1] for each in holders[:3]] == uids
    with pytest.raises(HostError, match="all 3 users"):
        folders.make(holders[3])
    folders.remove(holders[1])
    assert folders.make(holders[3])[1] == uids[1]
    folders.sweep([holders[3]])
    assert [path.name for path in (tmp_path / "hosts").iterdir()] == [folders.of(holders[3]).name]


@pytest.mark.root("to change owners")
def test_what_a_tenant_left_in_its_folder_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    folders, holder = Folders(tmp_path / "hosts", [7000]), Holder("l-1", 1, 0)
    folder, _ = folders.make(holder)
    (folder / "tmp").rmdir()
    (folder / "tmp").symlink_to(victim)
    folders.make(holder)
    assert victim.stat().st_uid == os.geteuid()
    assert victim.stat().st_mode & 0o777 == 0o755
    assert not (folder / "tmp").is_symlink()


@pytest.mark.root("to run processes as somebody else")
def test_whom_processes_run_as() -> None:
    assert list(HostingSettings().users) == [NOBODY], "whoever reaches an endpoint can have code run"
    assert list(HostingSettings("1234").users) == [1234]
    assert list(HostingSettings(uids="3000-3002").users) == [3000, 3001, 3002]
    with pytest.raises(ConfigError, match="no user of this machine"):
        assert HostingSettings("who-ever").users
    for wrong in ("3000", "0-5", "9-3", "a-b", "1-99999999999"):
        with pytest.raises(ConfigError, match="is not FIRST-LAST"):
            assert HostingSettings(uids=wrong).users
