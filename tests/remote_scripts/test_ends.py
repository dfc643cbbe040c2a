"""Ends of a session on a lease elsewhere: what a program that does not care for it says last, and its exit code."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from aliquot.cli._exits import Exit
from aliquot.client import Pool
from tests.polling import eventually
from tests.remote_scripts.conftest import Run

PROGRAM = """
import json, os, pathlib, sys, torch
path, wrong = pathlib.Path(os.environ["ALIQUOT_REMOTE_TICKET"]), json.loads(sys.argv[2])
ticket = json.loads(path.read_text())
if wrong:
    ticket["parts"][0] |= wrong.pop("part", {})
    mine = pathlib.Path(sys.argv[1] + ".ticket")
    mine.touch(0o600)
    mine.write_text(json.dumps(ticket | wrong))
    os.environ["ALIQUOT_REMOTE_TICKET"] = str(mine)
x = torch.ones(4, device="cuda")
while x.mul_(1).sum().item() == 4:
    pathlib.Path(sys.argv[1]).write_text(ticket["lease_id"])
"""


def released(pool: Pool, lease_id: str) -> None:
    pool.release(lease_id, reason="by an administrator")


def claimed(pool: Pool, lease_id: str) -> None:
    with pool.lease("2x1(A100)", priority=100):
        eventually(lambda: lease_id)


@dataclass(frozen=True)
class End:
    """One way in which a session ends."""

    code: Exit
    said: str
    """A pattern of the sentence on stderr."""
    happens: Callable[[Pool, str], None] | None = None
    options: tuple[str, ...] = ()
    wrong: str = "{}"
    """What of its ticket is other than it should be."""
    gpu: str = "0.25(A100),4Gi"


ENDED = r"aliquot: the program has ended because lease \S+ has ended \({}\).*\."
ENDS = {
    "released by somebody else": End(Exit.LEASE_LOST, ENDED.format("RELEASED"), released),
    "preempted": End(Exit.LEASE_LOST, ENDED.format("PREEMPTED"), claimed, ("--preemptible", "--grace", "1s")),
    "nobody at its endpoint": End(
        Exit.UNAVAILABLE,
        r"aliquot: the program has ended because 127\.0\.0\.1:9 did not let this program in: .*",
        wrong='{"part": {"endpoint": "remote://127.0.0.1:9?sha256=' + "A" * 43 + '"}}',
    ),
    "its credential refused": End(
        Exit.NOT_PERMITTED,
        r"aliquot: the program has ended because the server refuses the session: .*",
        wrong='{"credential": "' + "0" * 64 + '"}',
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_is_one_sentence_and_a_code(name: str, run_remote: Run, pool: Pool, tmp_path: Path) -> None:
    end, running = ENDS[name], tmp_path / "running"
    ended: list[CompletedProcess[str]] = []
    program = threading.Thread(
        target=lambda: ended.append(
            run_remote("-c", PROGRAM, str(running), end.wrong, gpu=end.gpu, options=("--no-queue", *end.options))
        )
    )
    program.start()
    if end.happens is not None:
        eventually(lambda: running.exists() and running.read_text() != "")
        end.happens(pool, running.read_text())
    program.join(200)
    (done,) = ended
    assert re.search(end.said, done.stderr), done.stderr
    assert done.returncode == end.code, done.stderr
