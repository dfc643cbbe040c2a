"""A real PostgreSQL of our own: made in a temporary folder, reached over loopback, ended with the tests.

`initdb` refuses root, so as root it runs as `nobody`. It is also a program, for the benchmarks.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

_UP_WITHIN_S = 60
_USER = "aliquot"


@dataclass
class Postgres:
    """A server and its databases."""

    port: int
    process: subprocess.Popen[bytes]
    start: Callable[[], subprocess.Popen[bytes]]
    """Begins another process on the same data."""
    log: Path

    def conninfo(self, database: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} user={_USER} dbname={database}"

    def database(self, name: str) -> str:
        """A fresh database; returns how it is reached."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.conninfo(name)

    def stop(self) -> None:
        """End every session and the server, in order."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def start_again(self) -> None:
        """After `stop`: until it answers."""
        self.process = self.start()
        _wait_until_up(self, self.log)

    def freeze(self) -> None:
        """Stop all its processes as a hung machine would."""
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        postmaster = self.process.pid
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        return [postmaster, *map(int, children)]


@contextlib.contextmanager
def running(bin_dir: Path, *settings: str, folder: str | None = None, network: str = "") -> Iterator[Postgres]:
    """A server that syncs what it commits, for as long as the context lasts; loopback reaches it, and `network`."""
    root = Path(tempfile.mkdtemp(prefix="aliquot-pg-", dir=folder))
    data = root / "data"
    before: list[str] = []
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(root, nobody.pw_uid, nobody.pw_gid)
        before = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    environment = {**os.environ, "HOME": str(root), "LC_ALL": "C"}
    try:
        initdb = [*before, str(bin_dir / "initdb"), "-D", str(data), "-U", _USER, "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run(initdb, check=True, capture_output=True, env=environment, cwd=root)
        if network:
            with (data / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {network} trust\n")
            settings = (*settings, "listen_addresses=*")
        port = _free_port()
        given = ["fsync=on", "max_connections=50", f"unix_socket_directories={root}", "shared_buffers=64MB", *settings]
        command = [*before, str(bin_dir / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1"]
        for setting in given:
            command += ["-c", setting]

        def start() -> subprocess.Popen[bytes]:
            with (root / "log").open("ab") as log:
                return subprocess.Popen(command, env=environment, cwd=root, stdout=log, stderr=log)

        server = Postgres(port, start(), start, root / "log")
        try:
            _wait_until_up(server, root / "log")
            yield server
        finally:
            with contextlib.suppress(FileNotFoundError):
                server.thaw()
            server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(server: Postgres, log: Path) -> None:
    deadline = time.monotonic() + _UP_WITHIN_S
    while True:
        try:
            psycopg.connect(server.conninfo(), connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)
