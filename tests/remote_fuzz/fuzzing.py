"""Says anything to an engine, and sees that it holds what it says that it holds, tells no secrets and touches no files.

Beside each session that is attacked another one of the same part holds a secret and is asked for it now and then.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from tests.remote_fuzz.making import Maker

SECRET = b"a secret of somebody else's: 5e884898da28047151d0e56f8dc62927"
SESSION_FRAMES = 2000
"""So long a session lasts; what it has then is gone at once."""
_CHECK_EVERY = 16


class Attacked(Protocol):
    """An engine's session, as the fuzzer sees it."""

    def frame(self, maker: Maker) -> bytes:
        """A frame that is nearly right."""

    def say(self, frame: bytes) -> None:
        """Have the engine do it. Whatever it raises is a finding."""

    def answers(self) -> list[bytes]:
        """What it has answered since."""

    def forgive(self) -> None:
        """Go on after a fault."""

    def exact(self) -> str:
        """Empty while its account is what it holds; else what is wrong."""

    def close(self) -> str:
        """Empty where nothing was left; else what is wrong."""


class Target(Protocol):
    """An engine."""

    numbers: dict[str, tuple[int, ...]]
    words: dict[str, tuple[str, ...]]

    def attacked(self) -> Attacked:
        """A session."""

    def bystander(self) -> str:
        """Empty while somebody else's session has its secret."""

    def close(self) -> str:
        """Empty where nothing is left in all."""


@dataclass
class Result:
    """What was found."""

    engine: str
    seed: int
    frames: int = 0
    faults: int = 0
    sessions: int = 0
    findings: list[str] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        return asdict(self)


class Watch:
    """Notes what this thread opens, starts or connects to while it watches."""

    _SEEN = frozenset({"open", "os.system", "os.exec", "subprocess.Popen", "socket.connect", "os.remove", "os.rename"})

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._own = tuple(
            str(Path(each).resolve()) for each in (sys.prefix, sys.base_prefix, Path(__file__).parents[2])
        )
        tempfile.gettempdir()  # libraries ask for it, and it tries the folder once
        self.on = False
        self.noted: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.on or event not in self._SEEN or threading.get_ident() != self._thread:
            return
        if event == "open" and (isinstance(arguments[0], int) or str(arguments[0]).startswith(self._own)):
            return  # modules that are imported late
        self.noted.append(f"{event} {str(arguments)[:200]}")


def attack(name: str, target: Target, frames: int, seed: int) -> Result:
    """So many frames."""
    result = Result(name, seed)
    chance = random.Random(seed)
    maker = Maker(chance, target.numbers, target.words)
    corpus: deque[bytes] = deque(maxlen=64)
    watch = Watch()
    while result.frames < frames and not result.findings:
        result.sessions += 1
        session = target.attacked()
        for _ in range(min(SESSION_FRAMES, frames - result.frames)):
            frame = session.frame(maker)
            if chance.random() < 0.15:
                frame = maker.broken(frame, corpus)
            elif frame:
                corpus.append(frame)
            result.frames += 1
            watch.on = True
            try:
                session.say(frame)
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                result.findings.append(f"{type(error).__name__}: {error} by {frame[:300].hex()}")
            watch.on = False
            _look(session, chance, result)
            if result.frames % _CHECK_EVERY == 0 and (problem := session.exact()):
                result.findings.append(f"{problem} behind {frame[:300].hex()}")
            if result.findings:
                break
        for problem in (session.close(), target.bystander(), *watch.noted):
            if problem:
                result.findings.append(problem)
    if problem := target.close():
        result.findings.append(problem)
    return result


def _look(session: Attacked, chance: random.Random, result: Result) -> None:
    faults = 0
    for answer in session.answers():
        if SECRET[:16] in answer:
            result.findings.append("it told the secret of somebody else")
        faults += answer[1:7] == b"\xa5fault"
    result.faults += faults
    if (faults and chance.random() < 0.95) or (not faults and chance.random() < 0.01):
        session.forgive()
