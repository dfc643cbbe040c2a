"""A full disk: a commit fails with a clear word, nothing of it is found later, and writing goes on with room."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.coordinator.errors import JournalUnavailable
from aliquot.coordinator.writing.journal.replay import replay
from tests.journal.facts import Story, opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"can't mount here: {mounted.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def leases_until_refused(story: Story) -> tuple[int, JournalUnavailable]:
    for number in range(10_000):
        try:
            story.lease(number)
        except JournalUnavailable as error:
            return number, error
    raise AssertionError("the disk never became full")


@pytest.mark.root("to mount a small file system")
def test_a_full_disk_fails_the_commit_and_recovers_with_room(small_disk: Path) -> None:
    story = Story(opened(small_disk / "j.db"))
    story.begin()
    ballast = small_disk / "ballast"
    fill(ballast)
    number, refusal = leases_until_refused(story)
    assert "full" in str(refusal)
    with pytest.raises(JournalUnavailable):
        story.journal.recover()
    ballast.unlink()
    story.journal.recover()
    again = replay(story.journal)
    assert set(again.state.leases) == {f"l-{n}" for n in range(number)}
    story.journal.resume_after(again.state.seq, again.digest)
    story.go_on_with(again.state)
    story.lease(number)
    assert f"l-{number}" in replay(story.journal).state.leases
    story.journal.close()
