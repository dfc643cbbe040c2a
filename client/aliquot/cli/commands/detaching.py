"""`run --detach` and `logs`: programs that outlive the terminal they were started in, and what they have written.

The command starts itself once more, in a session of its own, and that one holds the lease as ever. Once it knows which
lease that is, what it and its program write goes into a file below the user's state folder, and its starter is told. So
all that goes wrong before is seen where it was typed.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.client import NotFound
from aliquot.client.local import state_folder
from aliquot.common.files import make_private

LOG_BYTES_MAX = 8 << 20
"""Of a log. What came before is kept beside it, as much again."""
LOGS_KEPT = 32
VARIABLE = "ALIQUOT_DETACHED"
"""Set for the one that goes on: the descriptor by which it tells its starter about the lease."""
_CHUNK_BYTES = 1 << 16
_LOOK_AGAIN_S = 0.2
_LAST_WORDS_S = 2.0


def start(out: Out) -> int:
    """Start this command once more, and wait until it has its lease, or has failed."""
    told, telling = os.pipe()
    words = [sys.executable, "-m", "aliquot.cli", *sys.argv[1:]]
    process = subprocess.Popen(  # noqa: S603 - ourselves, as we were called
        words,
        stdin=subprocess.DEVNULL,
        env={**os.environ, VARIABLE: str(telling)},
        pass_fds=[telling],
        start_new_session=True,
    )
    os.close(telling)
    try:
        with os.fdopen(told) as pipe:
            lease_id = pipe.read()
    except KeyboardInterrupt:
        process.terminate()  # it withdraws its request
        process.wait()
        raise
    if not lease_id:
        return process.wait()
    out.document({"lease_id": lease_id, "log": str(_log_of(lease_id)), "pid": process.pid})
    out.show(f"{lease_id} goes on without this terminal")
    out.show(
        f"  what it writes: aliquot logs -f {lease_id}", f"  another program in it: aliquot exec -l {lease_id} -- …"
    )
    out.show(f"  its end: aliquot release {lease_id}")
    return 0


def begin(lease_id: str, out: Out) -> None:
    """From now on all that is written goes into the lease's log; and the starter is told."""
    telling = int(os.environ.pop(VARIABLE))
    log = _Log(_log_of(lease_id))
    source, sink = os.pipe()
    _write_to(sink)
    out.as_json = False  # a log is for people
    out.look_again()
    copying = threading.Thread(target=log.copy, args=[source], name="log", daemon=True)
    copying.start()

    def end() -> None:
        # With the last writer the pipe ends, unless the program has left somebody behind.
        sys.stdout.flush()
        _write_to(os.open(os.devnull, os.O_WRONLY))
        copying.join(_LAST_WORDS_S)

    atexit.register(end)
    with os.fdopen(telling, "w") as pipe:
        pipe.write(lease_id)


def _write_to(descriptor: int) -> None:
    """Have standard output and error of this process, and of programs that it starts, go there."""
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


class _Log:
    """A bounded file. Who holds its lock writes it: readers know by it whether more may come."""

    def __init__(self, path: Path) -> None:
        make_private(path.parent)
        known = sorted(path.parent.glob("*.log"), key=lambda each: each.stat().st_mtime)
        for old in known[: -LOGS_KEPT + 1]:
            with old.open("rb") as file:
                if not _is_written(file):
                    old.unlink()
                    _before(old).unlink(missing_ok=True)
        self._path = path
        self._file = self._open()

    def _open(self) -> BinaryIO:
        import fcntl  # noqa: PLC0415 - does not exist on all systems, where the command line does

        # Others can't enter the folder.
        file = self._path.open("ab", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def copy(self, source: int) -> None:
        """Until nobody writes any more."""
        while part := os.read(source, _CHUNK_BYTES):
            # A full disk costs lines, and no program: one whose output nobody takes would stand still.
            with contextlib.suppress(OSError):
                if self._file.tell() + len(part) > LOG_BYTES_MAX:
                    self._path.replace(_before(self._path))
                    full, self._file = self._file, self._open()
                    full.close()
                self._file.write(part)


def _is_written(file: BinaryIO) -> bool:
    import fcntl  # noqa: PLC0415 - see above

    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _log_of(lease_id: str) -> Path:
    return state_folder(os.environ) / "logs" / f"{lease_id}.log"


def _before(log: Path) -> Path:
    return log.with_suffix(".log.1")


def _parts(log: Path, *, follow: bool) -> Iterator[bytes]:
    """What is in a log; with `follow` until nobody writes it any more."""
    with contextlib.suppress(FileNotFoundError):
        yield _before(log).read_bytes()
    over = False
    while not over:
        with log.open("rb") as file:
            ended = False
            while not ended:
                # Looked at before it is read: of one that was over by then, nothing is missed.
                ended = not follow or not _is_written(file)
                while part := file.read(_CHUNK_BYTES):
                    yield part
                if not ended:
                    time.sleep(_LOOK_AGAIN_S)
            over = os.fstat(file.fileno()).st_ino == log.stat().st_ino  # else it was full


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "On the machine where `aliquot run --detach` was called, for the user who called it."
    parser.add_argument("lease_id", metavar="LEASE")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until its program has ended")


def _logs(args: argparse.Namespace, out: Out) -> None:
    del out  # the program's own words, as they are
    log = _log_of(args.lease_id)
    if not log.exists():
        raise NotFound(
            f"this user has no log of lease {args.lease_id} on this machine",
            hint="logs are kept of what `aliquot run --detach` started; others write where `aliquot run` was called",
            reason="NO_LOG",
        )
    for part in _parts(log, follow=args.follow):
        sys.stdout.buffer.write(part)
        sys.stdout.flush()


LOGS = Work(_configure, _logs)
