"""What the kernel's files don't tell of AMD's and Intel's cards, and their vendors' libraries do: errors and links.

A vendor's library is never loaded here. A small program (`library_program.py`) is started for the first question, and
asked again by a line; it answers when it does, and nobody waits for it but the first discovery, for a moment. One that
hangs is killed, and one that ends or raises is left alone for a while. What it said last holds meanwhile for links
(cards are not wired anew while they run), and counts as unknown for all else. Nothing is limited or ended by it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("library_program.py")
ASKED_S = 30.0
"""How often a library is asked. As often as health is."""
HUNG_S = 20.0
"""One that has not answered for so long is killed."""
LEFT_ALONE_S = 600.0
"""For so long after it was killed, or was not there."""
FIRST_S = 5.0
"""How long the first discovery waits for it."""
ANSWER_BYTES_MAX = 1 << 20
_CHUNK_BYTES = 1 << 16
_END_S = 1.0
VARIABLES = {"amd": "ALIQUOT_AMD_SMI_LIBRARY", "intel": "ALIQUOT_ZE_LIBRARY"}
"""Each names a library's path, or `off`."""
OFF = "off"


class Told(msgspec.Struct, frozen=True):
    """Of one card; None: not told."""

    uncorrected: int | None = None
    """Errors of the hardware that were not corrected, since its driver was loaded."""
    links_up: int | None = None
    peers: tuple[str, ...] = ()
    """Addresses of cards that it has links of its own to."""


class _Answer(msgspec.Struct):
    cards: dict[str, Told] | None = None
    absent: str = ""
    error: str = ""


NOTHING = Told()


class Libraries:
    """Of both vendors. May be used from several threads."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        hung_s: float = HUNG_S,
        first_s: float = FIRST_S,
    ) -> None:
        """`environment`: what the libraries must find beside this process's own, on a simulated machine."""
        self._environment = {**os.environ, **(environment or {})}
        self._clock_s, self._hung_s, self._first_s = clock_s, hung_s, first_s
        self._readers: dict[str, _Reader] = {}
        self._lock = threading.Lock()

    def look(self, vendors: Collection[str], *, wait: bool = False) -> None:
        """Ask what is due, and take what was answered. `wait`: for a moment, where a library has never answered."""
        for vendor in vendors:
            if (reader := self._reader(vendor)) is not None:
                reader.look(self._first_s if wait else 0.0)

    def of(self, vendor: str, address: str) -> Told:
        """What is known of a card. Never waits."""
        reader = self._reader(vendor)
        return reader.cards.get(address, NOTHING) if reader is not None else NOTHING

    @property
    def pids(self) -> frozenset[int]:
        """Of the programs: a library may keep files of its cards open."""
        return frozenset(pid for reader in list(self._readers.values()) if (pid := reader.pid) is not None)

    @property
    def problems(self) -> tuple[str, ...]:
        """Libraries that are there and don't answer, each with the reason, for people."""
        return tuple(reader.problem for reader in list(self._readers.values()) if reader.problem)

    def close(self) -> None:
        """End the programs."""
        for reader in list(self._readers.values()):
            reader.close()

    def _reader(self, vendor: str) -> _Reader | None:
        if vendor not in VARIABLES:
            return None
        with self._lock:
            if vendor not in self._readers:
                self._readers[vendor] = _Reader(vendor, self._environment, self._clock_s, self._hung_s)
            return self._readers[vendor]


def paths_of(vendor: str, environment: Mapping[str, str]) -> list[str]:
    """Where a vendor's library may be, in the order in which its own tools look; a bare name is the linker's."""
    if vendor == "intel":
        return ["libze_loader.so.1"]
    homes = [environment.get("ROCM_HOME", ""), environment.get("ROCM_PATH", ""), "/opt/rocm"]
    return [*(f"{home}/lib/libamd_smi.so" for home in homes if home), "libamd_smi.so"]


class _Reader:
    """One library, in a process of its own."""

    def __init__(
        self,
        vendor: str,
        environment: Mapping[str, str],
        clock_s: Callable[[], float],
        hung_s: float,
    ) -> None:
        self.cards: Mapping[str, Told] = {}
        self.problem = ""
        self._vendor, self._environment = vendor, environment
        self._named = environment.get(VARIABLES[vendor], "")
        self._paths = [self._named] if self._named else paths_of(vendor, environment)
        self._clock_s, self._hung_s = clock_s, hung_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: list[subprocess.Popen[bytes]] = []
        """Killed, and perhaps still in the kernel."""
        self._heard = b""
        self._asked_s: float | None = None
        """When the question was asked that has no answer yet."""
        self._due_s = float("-inf")
        self._answered = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None else None

    def look(self, wait_s: float) -> None:
        if self._named == OFF or not self._lock.acquire(blocking=False):
            return  # somebody else is at it
        try:
            now_s = self._clock_s()
            self._ended = [process for process in self._ended if process.poll() is None]
            if self._asked_s is None and now_s >= self._due_s:
                self._ask(now_s)
            if self._asked_s is not None:
                self._take(0.0 if self._answered else wait_s)
            if self._asked_s is not None and self._clock_s() - self._asked_s >= self._hung_s:
                self._give_up(f"it has not answered for {self._hung_s:g} s and was ended")
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._end()
            for process in self._ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
            self._ended.clear()

    def _ask(self, now_s: float) -> None:
        try:
            if self._process is None:
                self._process = subprocess.Popen(  # noqa: S603 - our own program
                    # Without site-packages it starts in a tenth of the time, and finds nobody's sitecustomize.
                    [sys.executable, "-I", "-S", str(PROGRAM), self._vendor, *self._paths],
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                self._heard = b""
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), b"\n")
            self._asked_s = now_s
        except BrokenPipeError:
            self._give_up(self._why_ended())
        except OSError as error:
            self._give_up(f"its program can't be asked: {error}")

    def _take(self, wait_s: float) -> None:
        """What was answered meanwhile, or is within this time."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._heard and ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
            chunk = os.read(descriptor, _CHUNK_BYTES)
            self._heard += chunk
            if not chunk or len(self._heard) > ANSWER_BYTES_MAX:
                self._give_up(self._why_ended() if not chunk else "its answer is too long")
                return
        line, newline, rest = self._heard.partition(b"\n")
        if newline:
            self._heard = rest
            self._learn(line)

    def _why_ended(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "its program stopped answering"
        if code < 0:
            return f"the library ends the process that loads it (signal {-code}): repair or remove it"
        return f"its program ended with {code}"

    def _learn(self, line: bytes) -> None:
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except msgspec.DecodeError as error:
            self._give_up(f"its answer can't be read: {error}")
            return
        if answer.cards is None:
            self._give_up(answer.error or (answer.absent if self._named else ""))
            return
        self.cards, self.problem = answer.cards, ""
        self._answered = True
        self._asked_s = None
        self._due_s = self._clock_s() + ASKED_S

    def _give_up(self, why: str) -> None:
        """Leave it alone for a while. `why` is empty where there is no library, which is no problem."""
        self._end()
        self._due_s = self._clock_s() + LEFT_ALONE_S
        self.cards = {address: Told(peers=told.peers) for address, told in self.cards.items()}
        self._answered = True  # nobody need wait for it again
        self.problem = f"errors and links of {self._vendor} cards are not told by their library: {why}" if why else ""
        if why:
            log.warning("%s", self.problem)

    def _end(self) -> None:
        process, self._process, self._asked_s = self._process, None, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        self._ended.append(process)
