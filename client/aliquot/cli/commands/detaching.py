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

from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.client import NotFound
from aliquot.client.local import state_folder
from aliquot.common.own_files import lock_file, make_private

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
    process = subprocess.Popen(  # noqa: S603 - ourselves, as we were called
        [sys.executable, "-m", "aliquot.cli", *sys.argv[1:]],
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
    out.show(f"what it writes: aliquot logs -f {lease_id}; its end: aliquot release {lease_id}")
    return 0


def begin(lease_id: str, out: Out) -> None:
    """From now on all that is written goes into the lease's log; and the starter is told."""
    telling = int(os.environ.pop(VARIABLE))
    log = _Log(_log_of(lease_id))
    source, sink = os.pipe()
    _write_to(sink)
    out.look_again(as_json=False)  # a log is for people
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
        with contextlib.suppress(FileNotFoundError):  # another that begins now makes room as well
            known = sorted(path.parent.glob("*.log"), key=lambda each: each.stat().st_mtime)
            for old in known[: -LOGS_KEPT + 1]:
                if not _is_written(old):
                    old.unlink()
                    _before(old).unlink(missing_ok=True)
        self._path, self._bytes = path, 0
        self._file = lock_file(path)

    def copy(self, source: int) -> None:
        """Until nobody writes any more."""
        while part := os.read(source, _CHUNK_BYTES):
            # A full disk costs lines, and no program: one whose output nobody takes would stand still.
            with contextlib.suppress(OSError):
                if self._bytes + len(part) > LOG_BYTES_MAX:
                    self._begin_anew()
                self._bytes += os.write(self._file, part)
        os.close(self._file)

    def _begin_anew(self) -> None:
        before, fresh = _before(self._path), self._path.with_suffix(".new")
        before.unlink(missing_ok=True)
        os.link(self._path, before)
        full, self._file, self._bytes = self._file, lock_file(fresh), 0
        fresh.replace(self._path)  # so that there is a log at any moment
        os.close(full)


def _is_written(log: Path) -> bool:
    try:
        os.close(lock_file(log))
    except BlockingIOError:
        return True
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
            full = ended = False
            while not ended:
                # Looked at before it is read: of one that has ended by then, nothing is missed.
                full = os.fstat(file.fileno()).st_ino != log.stat().st_ino
                ended = full or not follow or not _is_written(log)
                while part := file.read(_CHUNK_BYTES):
                    yield part
                if not ended:
                    time.sleep(_LOOK_AGAIN_S)
            over = not full


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
