"""An MPS control daemon: started, asked and stopped through nvidia-cuda-mps-control.

Older ones read text commands and have one server for each user (protocol 2). Newer ones (r615) take `module verb` on
the command line, and have servers by name with namespaces (protocol 3): one server then serves the leases of all
tenants, each in a namespace of its own, so that their programs run at the same time instead of in turns.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from aliquot.agent.enforce.base import EnforcementError

PROGRAM = "nvidia-cuda-mps-control"
FAULT = "FAULT"
"""The state of a server after a fatal fault."""
ANSWER_TIMEOUT_S = 10.0
TERMINATE_TIMEOUT_S = 2.0
"""A signal waits for it."""
HANGS_AFTER_S = 10.0
"""A program that has not come through `cuInit` by then never will."""
_INIT = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
_UNITS = {"K": 10, "M": 20, "G": 30}


class Part(msgspec.Struct, frozen=True):
    """What one slice may have of a device under MPS."""

    memory_bytes: int
    percent: int
    """Of the multiprocessors."""


def installed() -> bool:
    """Whether the control program is there."""
    return shutil.which(PROGRAM) is not None


class MpsControl:
    """The daemon of one device and one domain; its folders are its identity. Protocol 2."""

    _START: Sequence[str] = ("-d",)

    def __init__(self, directory: Path, device_uuid: str) -> None:
        self.pipe_directory = directory / "pipe"
        self.log_directory = directory / "log"
        self._device_uuid = device_uuid

    def start(self) -> None:
        """Start the daemon unless one answers. Raises `EnforcementError`."""
        if self.alive():
            return
        for directory in (self.pipe_directory, self.log_directory):
            shutil.rmtree(directory, ignore_errors=True)  # what a daemon that died left keeps the next from starting
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o755)
        done = self._run(self._START)
        if done.returncode != 0 or not self.alive():
            raise EnforcementError(
                f"the MPS control daemon did not start: {_said(done) or done.returncode}",
                hint=f"see {self.log_directory}/control.log",
            )

    def stop(self) -> None:
        """Have the daemon and its servers end; clients that still run lose their contexts."""
        self._quit()
        shutil.rmtree(self.pipe_directory.parent, ignore_errors=True)

    def restart(self) -> None:
        """A fresh daemon in place of one whose server has failed: it would take no new clients while one of the old
        ones lives, and those can't go on. Raises `EnforcementError`.
        """
        self._quit()
        shutil.rmtree(self.pipe_directory, ignore_errors=True)
        self.start()

    def alive(self) -> bool:
        """Whether the daemon answers."""
        if not self.pipe_directory.is_dir():
            return False
        try:
            self.servers()
        except EnforcementError:
            return False
        return True

    def servers(self) -> str:
        """Its servers as it lists them. Raises `EnforcementError`."""
        return self._ask("get_server_list")

    def set_parts(self, parts: Mapping[str, Part]) -> None:
        """Allow each slice what it may have: here what the largest needs, for all. Raises `EnforcementError`."""
        self._ask(f"set_default_device_pinned_mem_limit 0 {_most(parts) >> 20}M")

    def in_force(self, parts: Mapping[str, Part]) -> bool:
        """Whether that is what the daemon says. Raises `EnforcementError`."""
        return _bytes_of(self._ask("get_default_device_pinned_mem_limit 0")) == _most(parts) >> 20 << 20

    def environment(self, slice_id: str, part: Part) -> Mapping[str, str]:
        """How a slice's programs find the daemon, and its own, lower limits: a client can only lower its own."""
        del slice_id
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={part.memory_bytes >> 20}M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(part.percent),
        }

    def clients(self) -> Collection[int]:
        """Pids of all clients of all servers. Raises `EnforcementError`."""
        found: set[int] = set()
        for server in self._server_pids():
            found |= {int(pid) for pid in re.findall(r"^\d+$", self._ask(f"get_client_list {server}"), re.MULTILINE)}
        return found

    def failed(self) -> bool:
        """Whether in a server a client's fatal fault has ended the work of all. A control program that knows no states
        has none to tell. Raises `EnforcementError`.
        """
        for server in self._server_pids():
            with contextlib.suppress(EnforcementError):
                if FAULT in self._ask(f"get_server_status {server}").upper():
                    return True
        return False

    def terminate(self, pid: int) -> None:
        """Have a client's work dropped, so that it can be killed: its server would take nobody any more otherwise. One
        that is nobody's client is no error. Raises `EnforcementError` where the daemon does not answer in time.
        """
        servers = self._run((), "get_server_list\n", TERMINATE_TIMEOUT_S).stdout.split()
        self._run((), "".join(f"terminate_client {server} {pid}\n" for server in servers), TERMINATE_TIMEOUT_S)

    def hangs(self, uid: int | None) -> bool:
        """Whether a program that comes (as the user whom the server is for) never gets through its initialisation."""
        try:
            subprocess.run(  # noqa: S603  our own words only
                [sys.executable, "-c", _INIT],
                env=self._environment() | {"CUDA_MPS_PIPE_DIRECTORY": str(self._way_in)},
                user=uid if os.geteuid() == 0 else None,
                capture_output=True,
                timeout=HANGS_AFTER_S,
                check=False,
            )
        except OSError:
            return False
        except subprocess.TimeoutExpired:
            return True
        return False

    @property
    def _way_in(self) -> Path:
        """How a program that is no lease's comes to the server."""
        return self.pipe_directory

    def described(self) -> str:
        """Its servers, what its clients may have, and the end of its log, for people. Raises `EnforcementError`."""
        servers, limits, said = "; ".join(self.servers().splitlines()), self._limits(), self.last_words()
        described = f"servers: {servers or 'none yet'}; {limits}; {len(self.clients())} clients"
        return described + (f"; its log ends: {said}" if said else "")

    def _limits(self) -> str:
        return f"a client's limit: {self._ask('get_default_device_pinned_mem_limit 0')}"

    def last_words(self) -> str:
        """The end of the daemon's log; empty: it has none."""
        with contextlib.suppress(OSError):
            lines = (self.log_directory / "control.log").read_text(encoding="utf-8", errors="replace").splitlines()
            return lines[-1][:200] if lines else ""
        return ""

    def _quit(self) -> None:
        if self.alive():
            self._run((), "quit -t 5\n")

    def _server_pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"^\d+$", self.servers(), re.MULTILINE)]

    def _ask(self, text: str = "", words: Sequence[str] = ()) -> str:
        """One command, its answer. Raises `EnforcementError`."""
        done = self._run(words, f"{text}\n" if text else "")
        answer = _said(done)
        if done.returncode != 0 or re.search(r"\b(error|cannot|invalid|unrecognized)\b", answer, re.IGNORECASE):
            raise EnforcementError(f"MPS refused {text or ' '.join(words)!r}: {answer or done.returncode}")
        return answer

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
            "CUDA_VISIBLE_DEVICES": self._device_uuid,
        }

    def _run(
        self, words: Sequence[str], text: str = "", timeout_s: float = ANSWER_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        return _run_program(words, text, self._environment(), timeout_s)


class NamedMpsControl(MpsControl):
    """Protocol 3: one server for the device, a namespace for each slice."""

    _START = ("-d", "-m", "-p", "3")
    _SERVER = "aliquot"

    def start(self) -> None:
        """Start the daemon and its server unless they answer. Raises `EnforcementError`."""
        super().start()
        if not self._rows("server", "list"):
            allowed = f"--allowed-devices={self._device_uuid}"
            self._ask(words=("server", "create", self._SERVER, "--uid=0", allowed))

    def servers(self) -> str:
        """See `MpsControl`."""
        return self._ask(words=("server", "list", "--format=csv,noheader"))

    def set_parts(self, parts: Mapping[str, Part]) -> None:
        """See `MpsControl`: a namespace for each, and none for others."""
        present = {row[0] for row in self._rows("namespace", "list")}
        wanted = {_name_of(slice_id): part for slice_id, part in parts.items()}
        for name in sorted(present - wanted.keys() - {"default"}):
            self._ask(words=("namespace", "delete", name, self._of_server, "--force"))
        for name, part in wanted.items():
            if name not in present:
                self._ask(words=("namespace", "create", name, self._of_server))
            limits = (f"--pinned-memory-limit={part.memory_bytes >> 20}M", f"--active-thread-percentage={part.percent}")
            self._ask(words=("namespace", "set", name, self._of_server, *limits))

    def in_force(self, parts: Mapping[str, Part]) -> bool:
        """See `MpsControl`. A server of other devices runs its clients without any limit."""
        if not any(row[:1] == [self._SERVER] and self._device_uuid in row for row in self._rows("server", "list")):
            return False
        said = {row[0]: (_bytes_of(row[3]), row[4]) for row in self._rows("namespace", "list") if len(row) > 4}
        return all(
            said.get(_name_of(slice_id)) == (part.memory_bytes >> 20 << 20, str(part.percent))
            for slice_id, part in parts.items()
        )

    def _limits(self) -> str:
        rows = [row for row in self._rows("namespace", "list") if len(row) > 4]
        return f"namespaces: {'; '.join(f'{row[0]} {row[3]}, {row[4]} %' for row in rows) or 'none yet'}"

    def environment(self, slice_id: str, part: Part) -> Mapping[str, str]:
        """See `MpsControl`: whoever comes by a namespace's folder is in it."""
        del part
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory / self._SERVER / _name_of(slice_id)),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
        }

    def clients(self) -> Collection[int]:
        """See `MpsControl`."""
        return {int(row[0]) for row in self._rows("client", "list") if row[0].isdecimal()}

    def failed(self) -> bool:
        """See `MpsControl`."""
        return FAULT in self.servers().upper()

    def terminate(self, pid: int) -> None:
        """See `MpsControl`."""
        self._run(("client", "terminate", str(pid)), timeout_s=TERMINATE_TIMEOUT_S)

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"CUDA_MPS_PROTOCOL_VERSION": "3"}

    def _quit(self) -> None:
        if self.alive():
            self._run(("-q",))

    @property
    def _way_in(self) -> Path:
        return self.pipe_directory / self._SERVER

    @property
    def _of_server(self) -> str:
        return f"--server={self._SERVER}"

    def _rows(self, module: str, verb: str) -> list[list[str]]:
        scope = () if module == "server" else (self._of_server,)
        answer = self._ask(words=(module, verb, *scope, "--format=csv,noheader"))
        return [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]


def knows_names() -> bool:
    """Whether the control program that is installed has protocol 3."""
    try:
        return "--protocol" in _said(_run_program(("--help",), "", os.environ, ANSWER_TIMEOUT_S))
    except EnforcementError:
        return False


def _run_program(
    words: Sequence[str], text: str, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    command = [PROGRAM, *words]
    try:
        return subprocess.run(  # noqa: S603  our own words only
            command, input=text, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnforcementError(f"{PROGRAM} does not answer: {error}") from error


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout + done.stderr).strip()


def _most(parts: Mapping[str, Part]) -> int:
    return max(part.memory_bytes for part in parts.values())


def _bytes_of(answer: str) -> int | None:
    """None: no limit is set."""
    found = re.search(r"(\d+)\s*([KMG])?B?\s*$", answer)
    return int(found[1]) << _UNITS.get(found[2] or "", 0) if found is not None else None


def _name_of(slice_id: str) -> str:
    """Names have lower-case letters, digits and underscores only."""
    return f"s{hashlib.sha256(slice_id.encode()).hexdigest()[:24]}"
