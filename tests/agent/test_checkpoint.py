"""The state directory: whole or as it was, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.agent.core.model import Holder, Intent, ProcessKey, Reservation, SliceSpec, StopOrder
from aliquot.agent.core.partitioning import CutResult, Part
from aliquot.agent.core.reservations import order_stop
from aliquot.agent.disk.checkpoint import Checkpoint, StateDirError
from aliquot.agent.disk.durable import VERSION, Damaged, decode, encode, read_record
from aliquot.agent.disk.files import Disk
from aliquot.agent.disk.identity import Identity, derive
from aliquot.agent.partitions import _Stored as StoredCuts
from aliquot.agent.processes.attachments import Attachments
from aliquot.common.errors import InvalidFieldError
from aliquot.common.tiers import Tier
from tests.agent.checkpoint_writer import record
from tests.agent.harness import ROOT

Reopen = Callable[..., Checkpoint]
SAVED = Path(__file__).with_name("data") / "state-1"


@pytest.fixture
def reopen() -> Iterator[Reopen]:
    """Opens a state directory, letting go of the one before as a process that ends would."""
    opened: list[Checkpoint] = []

    def do(directory: Path, boot_id: str = "boot-1") -> Checkpoint:
        close()
        opened.append(Checkpoint.open(directory, boot_id))
        return opened[-1]

    def close() -> None:
        while opened:
            opened.pop().close()

    yield do
    close()


def test_killed_at_every_step_of_writing_nothing_is_half_done(tmp_path: Path, reopen: Reopen) -> None:
    writer = [sys.executable, "-m", "tests.agent.checkpoint_writer", str(tmp_path)]
    subprocess.run(writer, cwd=ROOT, check=True)
    tries = sorted(tmp_path.glob("*.said"), key=lambda path: int(path.stem))
    assert len(tries) > 8, "the faults were really hit"
    assert "forgot" in tries[-1].read_text(), "it came to the end"
    for path in tries:
        said, directory = path.read_text(), path.with_suffix("")
        checkpoint = reopen(directory)
        found = {each.slice_id: each for each in checkpoint.load()}
        owners, attachments, _ = checkpoint.load_attachments()
        assert not checkpoint.notes, f"step {path.stem}: nothing was damaged"
        assert not list(directory.glob("**/*.tmp")), f"step {path.stem}: leftovers are cleared away"
        if "saved" in said:
            assert "l-2.1.0" in found
            assert found["l-2.1.0"] == record(2)
        if "stopped 1" in said and "forgot 1" not in said and "l-1.1.0" in found:
            assert found["l-1.1.0"].intent is Intent.STOP
        if "forgot 1" in said:
            assert "l-1.1.0" not in found
        if "attached" in said:
            assert owners == {"l-2": 1000}
            assert [each.process for each in attachments] == [ProcessKey(1, 1)]


class WatchedDisk(Disk):
    """Knows what a loss of power could take back now, and refuses to give a name to bytes that are not on disk."""

    def __init__(self) -> None:
        self.unsynced: set[Path] = set()
        """Files by their bytes, folders by the names in them."""
        self.broken: set[str] = set()
        """Calls that fail."""

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            self.unsynced.add(path.parent)
        super().make_directory(path)

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        if "write" in self.broken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().write(path, data, sync=sync)
        self.unsynced.add(path.parent)
        if not sync:
            self.unsynced.add(path)

    def rename(self, source: Path, target: Path) -> None:
        if source.parent.name != "attachments":  # a loss of power ends the processes that those are about
            assert source not in self.unsynced, f"{target} gets bytes that may be lost"
        super().rename(source, target)
        self.unsynced |= {source.parent, target.parent}
        self.unsynced.discard(source)

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.unsynced |= {path.parent}

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.unsynced.discard(path)


def test_nothing_that_was_promised_is_lost_with_the_power(tmp_path: Path) -> None:
    """Each call returns with all that it changed on disk, its folders and their names included."""
    disk, state = WatchedDisk(), tmp_path / "a" / "state"
    checkpoint = Checkpoint.open(state, "boot-1", disk)
    assert not disk.unsynced, "the folders themselves"
    checkpoint.save([record(1), record(2)])
    assert not disk.unsynced
    checkpoint.save([order_stop(record(1), StopOrder(5, 1000, "released"), 3)])
    assert not disk.unsynced
    checkpoint.forget(["l-1.1.0", "l-9.1.0"])
    assert not disk.unsynced
    identity = Identity.open(checkpoint.record("node"), "", ["GPU-a"], disk)
    assert not disk.unsynced
    identity.obey(5)
    assert not disk.unsynced
    checkpoint.close()


def test_an_epoch_that_could_not_be_written_is_written_with_the_next_order(tmp_path: Path) -> None:
    disk, path = WatchedDisk(), tmp_path / "node.record"
    identity = Identity.open(path, "", ["GPU-a"], disk)
    disk.broken.add("write")
    with pytest.raises(OSError, match="No space left"):
        identity.obey(5)
    assert identity.leader_epoch == 5, "it is obeyed all the same"
    disk.broken.clear()
    identity.obey(5)
    assert Identity.open(path, "", ["GPU-a"]).leader_epoch == 5


def test_what_is_written_is_read(tmp_path: Path, reopen: Reopen) -> None:
    checkpoint = reopen(tmp_path)
    stopping = order_stop(record(1), StopOrder(5, 1000, "released"), 3)
    checkpoint.save([stopping, record(2)])
    assert {each.slice_id: each for each in checkpoint.load()} == {"l-1.1.0": stopping, "l-2.1.0": record(2)}


def test_an_older_start_of_the_machine_leaves_no_clock_and_no_attachments(tmp_path: Path, reopen: Reopen) -> None:
    checkpoint = reopen(tmp_path, "boot-1")
    checkpoint.save([order_stop(record(1), StopOrder(999_999, 1000, "released"), 3)])
    Attachments(checkpoint).add(Holder("l-1", 1, 0), ProcessKey(1, 1), 1000, "")
    later = reopen(tmp_path, "boot-2")
    (found,) = later.load()
    assert found.stop is not None
    assert found.stop.learned_ms == 0
    assert later.load_attachments() == ({}, [], [])


def test_a_state_directory_of_the_version_before_is_read_whole(tmp_path: Path, reopen: Reopen) -> None:
    """`data/state-1` was written by the commit that tests/compatibility/previous names, but for its attachments, which
    were stored otherwise before there was a release; it is kept for ever.
    """
    shutil.copytree(SAVED, tmp_path / "state")
    checkpoint = reopen(tmp_path / "state")
    specs = [
        SliceSpec(
            *(f"l-{number}.2.0", f"l-{number}", 2, f"GPU-{number}", 500, 20 << 30),
            member=number,
            min_tier=Tier.PRELOAD,
            grace_ms=10_000,
            secret_sha256=bytes(range(32)),
            tenant="research",
            queue="night",
        )
        for number in (1, 2, 3)
    ]
    stop = StopOrder(5_000, 30_000, "preempted")
    assert sorted(checkpoint.load(), key=lambda each: each.slice_id) == [
        Reservation(specs[0], leader_epoch=7),
        Reservation(specs[1], Intent.STOP, leader_epoch=8, stop=stop),
        Reservation(specs[2], leader_epoch=7, quarantined=True),
        Reservation(SliceSpec("l-4.1.0", "l-4", 1, "GPU-1", 1000, 79 << 30)),
    ]
    owners, attachments, _ = checkpoint.load_attachments()
    assert owners == {"l-1": 1000}
    assert [(each.holder, each.process, each.origin_cgroup) for each in attachments] == [
        (Holder("l-1", 2, 1), ProcessKey(4321, 98765), "/user.slice/one"),
        (Holder("l-1", 2, 1), ProcessKey(4322, 98766), ""),
    ]
    identity = Identity.open(checkpoint.record("node"), "", [])
    assert (identity.node_id, identity.leader_epoch) == ("rack1-7", 8)
    cuts = read_record(checkpoint.record("cuts"), "cuts", StoredCuts).cuts
    assert cuts == {
        "GPU-5": CutResult(3, parts=(Part(0, "3g.40gb"), Part(4, "3g.40gb"))),
        "GPU-6": CutResult(4, "in use"),
    }
    assert not checkpoint.notes


@pytest.mark.parametrize(
    "content",
    [b"", b"aliquot", b"\0" * 500, b"aliquot slice 1 00\n{}\n", b"aliquot node 1 00\n{}\n", b"x" * (2 << 20)],
)
def test_a_damaged_file_is_set_aside_with_a_message(tmp_path: Path, content: bytes, reopen: Reopen) -> None:
    checkpoint = reopen(tmp_path)
    checkpoint.save([record(1), record(2)])
    (tmp_path / "slices" / "l-1.1.0.record").write_bytes(content)
    assert [each.slice_id for each in checkpoint.load()] == ["l-2.1.0"]
    assert "l-1.1.0" in checkpoint.notes[0]
    assert (tmp_path / "damaged" / "l-1.1.0.record").read_bytes() == content
    assert not (tmp_path / "slices" / "l-1.1.0.record").exists()


def test_every_single_changed_byte_is_noticed() -> None:
    data = encode("slice", {"a": 1})
    for position in range(len(data) - 1):
        broken = bytearray(data)
        broken[position] ^= 0x01
        with pytest.raises(Damaged):
            decode(bytes(broken), "slice")


def test_a_record_of_a_newer_agent_says_so() -> None:
    data = encode("slice", {"a": 1}).replace(b"slice 1 ", f"slice {VERSION + 1} ".encode(), 1)
    with pytest.raises(Damaged, match="newer agent"):
        decode(data, "slice")


def test_a_record_under_another_slices_name_is_not_believed(tmp_path: Path, reopen: Reopen) -> None:
    checkpoint = reopen(tmp_path)
    checkpoint.save([record(1)])
    (tmp_path / "slices" / "l-1.1.0.record").rename(tmp_path / "slices" / "l-7.1.0.record")
    assert not checkpoint.load()
    assert "belongs elsewhere" in checkpoint.notes[0]


def test_two_agents_cannot_share_a_directory(tmp_path: Path, reopen: Reopen) -> None:
    reopen(tmp_path)
    with pytest.raises(StateDirError, match="another agent"):
        Checkpoint.open(tmp_path, "boot-1")
    reopen(tmp_path)


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path, reopen: Reopen) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirError, match="can't be used") as caught:
        reopen(tmp_path / "file" / "state")
    assert "--state-dir" in caught.value.hint


def test_the_nodes_id_is_kept_and_follows_from_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "node.record"
    first = Identity.open(path, "", ["GPU-b", "GPU-a"])
    assert Identity.open(path, "", ["GPU-c"]).node_id == first.node_id, "kept whatever the hardware is now"
    path.unlink()
    assert Identity.open(path, "", ["GPU-a", "GPU-x"]).node_id == first.node_id, "a reimaged machine is the same node"
    assert derive(["GPU-y"]) != first.node_id
    assert derive([]) != derive([]), "without devices it is random"
    assert Identity.open(path, "chosen-id", []).node_id == "chosen-id"
    with pytest.raises(InvalidFieldError):
        Identity.open(path, "no blanks please", [])


def test_the_leader_epoch_only_rises_and_survives(tmp_path: Path) -> None:
    path = tmp_path / "node.record"
    first = Identity.open(path, "", ["GPU-a"])
    first.obey(7)
    first.obey(3)
    assert Identity.open(path, "", ["GPU-a"]).leader_epoch == 7


def test_a_damaged_identity_is_made_again_from_the_devices(tmp_path: Path) -> None:
    path = tmp_path / "node.record"
    first = Identity.open(path, "", ["GPU-a"])
    path.write_bytes(b"garbage")
    assert Identity.open(path, "", ["GPU-a"]).node_id == first.node_id
    assert path.with_suffix(".damaged").read_bytes() == b"garbage"
