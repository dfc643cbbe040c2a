"""One MPS control daemon: started, asked and stopped through nvidia-cuda-mps-control's text commands."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from aliquot.agent.enforce.base import EnforcementError

PROGRAM = "nvidia-cuda-mps-control"
FAULT = "FAULT"
"""The state of a server after a fatal fault."""
ANSWER_TIMEOUT_S = 10.0


def installed() -> bool:
    """Whether the control program is there."""
    return shutil.which(PROGRAM) is not None


class MpsControl:
    """The daemon of one device and one domain; its folders are its identity."""

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
        done = self._run([PROGRAM, "-d"], "")
        if done.returncode != 0 or not self.alive():
            raise EnforcementError(
                f"the MPS control daemon did not start: {(done.stdout + done.stderr).strip() or done.returncode}",
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

    def _quit(self) -> None:
        if self.alive():
            self._run([PROGRAM], "quit -t 5\n")

    def alive(self) -> bool:
        """Whether the daemon answers."""
        if not self.pipe_directory.is_dir():
            return False
        try:
            return self._run([PROGRAM], "get_server_list\n").returncode == 0
        except EnforcementError:
            return False

    def ask(self, command: str) -> str:
        """One command, its answer. Raises `EnforcementError`."""
        done = self._run([PROGRAM], command + "\n")
        answer = (done.stdout + done.stderr).strip()
        if done.returncode != 0 or re.search(r"\b(error|cannot|invalid|unrecognized)\b", answer, re.IGNORECASE):
            raise EnforcementError(f"MPS refused {command!r}: {answer or done.returncode}")
        return answer

    def set_memory_limit(self, memory_bytes: int) -> None:
        """What a client may pin of the device at most, in whole MiB."""
        self.ask(f"set_default_device_pinned_mem_limit 0 {memory_bytes >> 20}M")

    def memory_limit_bytes(self) -> int | None:
        """What is set; None: nothing."""
        found = re.search(r"(\d+)\s*([KMG])?B?\s*$", self.ask("get_default_device_pinned_mem_limit 0"))
        if found is None:
            return None
        return int(found[1]) << {"K": 10, "M": 20, "G": 30}.get(found[2] or "", 0)

    def set_thread_percentage(self, percent: int) -> None:
        """The part of the multiprocessors a client may use at most."""
        self.ask(f"set_default_active_thread_percentage {percent}")

    def clients(self) -> Collection[int]:
        """Pids of all clients of all servers."""
        found: set[int] = set()
        for server in self._servers():
            found |= {int(pid) for pid in re.findall(r"^\d+$", self.ask(f"get_client_list {server}"), re.MULTILINE)}
        return found

    def failed_servers(self) -> list[int]:
        """Pids of servers in which a client's fatal fault has ended the work of all. A control program that knows no
        states has none to tell. Raises `EnforcementError`.
        """
        failed = []
        for server in self._servers():
            with contextlib.suppress(EnforcementError):
                if FAULT in self.ask(f"get_server_status {server}").upper():
                    failed.append(server)
        return failed

    def _servers(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"^\d+$", self.ask("get_server_list"), re.MULTILINE)]

    def _run(self, command: list[str], text: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
            "CUDA_VISIBLE_DEVICES": self._device_uuid,
        }
        try:
            return subprocess.run(  # noqa: S603  our own words only
                command,
                input=text,
                env=environment,
                capture_output=True,
                text=True,
                timeout=ANSWER_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnforcementError(f"{PROGRAM} does not answer: {error}") from error
