"""The files below an agent's store: names, sizes and modes, what is synced, and what is left when a write fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from aliquot.agent.core.attribution import Attachment
from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.durable import MAX_RECORD_BYTES, Damaged, decode, encode, read_bytes, write_many
from aliquot.agent.disk.files import Disk
from aliquot.agent.disk.identity import derive
from tests.agent.checkpoint_writer import record

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced: "file" or "folder"."""
    found: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.append("folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_each_reservation_is_synced_before_the_folder_and_attachments_are_not(tmp_path: Path, syncs: list[str]) -> None:
    checkpoint = Checkpoint.open(tmp_path, "boot")
    syncs.clear()
    checkpoint.save([record(1), record(2)])
    assert syncs == ["file", "file", "folder"]
    syncs.clear()
    checkpoint.forget(["l-1.1.0", "no such slice"])
    assert syncs == ["folder"]
    syncs.clear()
    checkpoint.save_attachments("l-2", 1000, [])
    checkpoint.save([])
    checkpoint.forget([])
    assert not syncs
    checkpoint.close()


def test_a_new_state_folder_is_durable_itself(tmp_path: Path, syncs: list[str]) -> None:
    Checkpoint.open(tmp_path / "a" / "b", "boot").close()
    assert syncs.count("folder") >= 5  # a, b and the three below it


def test_files_are_for_the_agent_alone_and_written_over_whole(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(tmp_path, "boot")
    before = len(list(Path("/proc/self/fd").iterdir()))
    (tmp_path / "slices" / "l-1.1.0.record.tmp").write_bytes(b"x" * 5_000)
    checkpoint.save([record(1), record(2)])
    assert (tmp_path / "slices" / "l-2.1.0.record").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "slices" / "l-1.1.0.record").stat().st_size < 5_000
    assert checkpoint.load() == [record(1), record(2)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    checkpoint.close()


def attachment(lease_id: str, pid: int) -> Attachment:
    return Attachment(Holder(lease_id, 1, 0), ProcessKey(pid, 7), 1)


def test_attachments_of_this_start_of_the_machine_are_read_and_others_removed(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(tmp_path, "boot-1")
    checkpoint.save_attachments("l-1", 1000, [attachment("l-1", 11)])
    checkpoint.close()
    checkpoint = Checkpoint.open(tmp_path, "boot-2")
    checkpoint.save_attachments("l-2", 1001, [attachment("l-2", 12)])
    assert checkpoint.load_attachments() == ({"l-2": 1001}, [attachment("l-2", 12)], [])
    assert [path.name for path in (tmp_path / "attachments").iterdir()] == ["l-2.record"]
    checkpoint.forget_attachments("l-2")
    assert checkpoint.load_attachments() == ({}, [], [])
    checkpoint.close()


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    class Full(Disk):
        def write(self, path: Path, data: bytes, *, sync: bool) -> None:
            super().write(path, data, sync=sync)
            if path.name.startswith("b"):
                raise OSError(errno.ENOSPC, "no space left on device")

    with pytest.raises(OSError, match="no space"):
        write_many({tmp_path / "a": b"1", tmp_path / "b": b"2"}, Full())
    assert not list(tmp_path.iterdir())


def test_a_record_may_be_a_mebibyte_and_no_more(tmp_path: Path) -> None:
    assert MAX_RECORD_BYTES == 1 << 20
    overhead = len(encode("slice", {"a": ""}))
    for more, fits in ((0, True), (1, False)):
        path = tmp_path / str(more)
        path.write_bytes(encode("slice", {"a": "x" * (MAX_RECORD_BYTES - overhead + more)}))
        if fits:
            assert read_bytes(path, "slice")
        else:
            with pytest.raises(Damaged, match="larger than 1048576 bytes"):
                read_bytes(path, "slice")


@pytest.mark.parametrize("data", [f"aliquot slice 1 {EMPTY_SHA256}", "aliquot slice 1\n{}", "aliquot slice 1 a b\n{}"])
def test_a_first_line_that_is_none_is_damage(data: str) -> None:
    with pytest.raises(Damaged, match="not a record"):
        decode(data.encode(), "slice")


def test_what_is_damaged_again_is_kept_beside_what_was(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(tmp_path, "boot")
    for content in (b"first", b"second", b"third"):
        (tmp_path / "slices" / "l-1.1.0.record").write_bytes(content)
        assert not checkpoint.load()
    kept = {path.name: path.read_bytes() for path in (tmp_path / "damaged").iterdir()}
    assert kept == {"l-1.1.0.record": b"first", "l-1.1.0.record.1": b"second", "l-1.1.0.record.2": b"third"}
    checkpoint.close()


@pytest.mark.parametrize(("length", "readable"), [(200, True), (201, False)])
def test_a_slice_of_any_name_has_a_file(tmp_path: Path, length: int, readable: bool) -> None:
    checkpoint = Checkpoint.open(tmp_path, "boot")
    spec = msgspec.structs.replace(record(1).spec, slice_id="s" * length)
    long = msgspec.structs.replace(record(1), spec=spec)
    checkpoint.save([long])
    assert checkpoint.load() == [long]
    (path,) = (tmp_path / "slices").iterdir()
    assert (path.stem == "s" * length) == readable
    checkpoint.close()


def test_the_id_of_a_node_follows_from_its_first_device_for_ever() -> None:
    assert derive(["GPU-b", "GPU-a"]) == "n-raksdam0tzrm0"
