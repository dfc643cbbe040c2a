"""Measures where the time of a program on remote devices goes.

    with aliquot.remote.profile() as profile:
        train()
    print(profile)

`aliquot run --remote --profile` does it for a whole program, by a variable that is read where a device is attached.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import os
import sys
import time
import weakref
from collections import Counter
from types import TracebackType
from typing import Any, Self

from torch.optim.optimizer import register_optimizer_step_post_hook

from aliquot.remote.core import messages
from aliquot.remote.core.profile import Place, Profile
from aliquot.remote.torch.session import ATTACHED, Counters, Session

VARIABLE = "ALIQUOT_REMOTE_PROFILE"
"""Set to `table` or `json`, a program says at its end where its time went."""
_ROUND_TRIPS = 5


class _Begun:
    """What a session had counted when its profile began."""

    def __init__(self, session: Session) -> None:
        session.synchronize()
        self.round_trip_s = min(_round_trip_s(session) for _ in range(_ROUND_TRIPS))
        self.there = session.statistics(timed=True)
        self.places = {key: tuple(value) for key, value in session.places.items()}
        self.counters: Counters = copy.copy(session.counters)
        self.began_s = time.perf_counter()


def _round_trip_s(session: Session) -> float:
    request = session.request()
    began_s = time.perf_counter()
    session.ask(messages.Mark(request), request)
    return time.perf_counter() - began_s


class Profiling:
    """Of every session that is open when it begins, or is opened until it ends."""

    def __init__(self) -> None:
        self._begun: weakref.WeakKeyDictionary[Session, _Begun] = weakref.WeakKeyDictionary()
        self._own_steps = 0
        self._optimizers: Counter[int] = Counter()
        self._hook: Any = None
        self.profiles: list[Profile] = []
        """One for each device, once it has ended."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Begin, with a few round trips to each server."""
        self._hook = register_optimizer_step_post_hook(self._stepped)
        _running.append(self)
        for session in sessions():
            self.add(session)
        return self

    def add(self, session: Session) -> None:
        """Another session was opened."""
        self._begun[session] = _Begun(session)

    def step(self) -> None:
        """A step is over. Without this, steps are those of the optimizer that makes most, and captured ones."""
        self._own_steps += 1

    def _stepped(self, optimizer: object, args: object, kwargs: object) -> None:
        self._optimizers[id(optimizer)] += 1

    def stop(self) -> Self:
        """End, and ask the servers what they have done."""
        if self._hook is None:
            return self
        self._hook.remove()
        self._hook = None
        _running.remove(self)
        for session in sorted(self._begun, key=lambda each: each.index):
            self.remove(session)
        return self

    def remove(self, session: Session) -> None:
        """A session is over: what was counted of it stands."""
        begun = self._begun.pop(session, None)
        if begun is not None and session.closed is None:
            self.profiles.append(self._profile(session, begun))

    def _profile(self, session: Session, begun: _Begun) -> Profile:
        elapsed_s = time.perf_counter() - begun.began_s
        now, before = copy.copy(session.counters), begun.counters
        places = [
            _place(session, key, count, seconds, begun.places.get(key, (0, 0.0)))
            for key, (count, seconds) in list(session.places.items())
        ]
        numbers: dict[str, int] = {}
        with contextlib.suppress(RuntimeError):  # its channel may be closed, or the lease over
            numbers = session.statistics()
        there = {
            key: max(0, numbers.get(key, 0) - begun.there.get(key, 0)) for key in ("busy_us", "within_us", "device_us")
        }
        replays = now.replays - before.replays
        return Profile(
            device=str(session.device),
            served_by=session.welcome.device,
            elapsed_s=elapsed_s,
            steps=self._own_steps or max(self._optimizers.values(), default=0) + replays,
            round_trip_s=begun.round_trip_s,
            operators=now.operators - before.operators,
            waits=now.waits - before.waits,
            waited_s=now.waited_s - before.waited_s,
            held_s=now.held_s - before.held_s,
            sent_bytes=now.sent_bytes - before.sent_bytes,
            received_bytes=now.received_bytes - before.received_bytes,
            busy_s=there["busy_us"] / 1e6,
            within_s=there["within_us"] / 1e6,
            device_s=there["device_us"] / 1e6,
            places=[place for place in places if place.waits],
        )

    def as_dict(self) -> dict[str, object]:
        """All devices, for JSON."""
        return {"devices": [profile.as_dict() for profile in self.profiles]}

    def __str__(self) -> str:
        return "\n\n".join(profile.table() for profile in self.profiles) or "no remote device was used"


def _place(session: Session, key: tuple[int, str], count: float, seconds: float, before: tuple[float, ...]) -> Place:
    site, what = key
    file, line, _ = session.locate(site) or ("", 0, "")
    return Place(what or "a request", file, line, int(count - before[0]), seconds - before[1])


def sessions() -> list[Session]:
    """Those that are attached."""
    return [session for session in ATTACHED if session is not None and session.closed is None]


_running: list[Profiling] = []


def attached(session: Session) -> None:
    """A session was opened: whoever profiles is told; where a variable says so, the whole program is profiled."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted in ("table", "json") and not _whole:
        _whole.append(Profiling())
        atexit.register(_say, _whole[0], as_json=wanted == "json", pid=os.getpid())
        _whole[0].start()
        return
    for each in _running:
        each.add(session)


def detached(session: Session) -> None:
    """A session is about to be closed."""
    for each in _running:
        each.remove(session)


_whole: list[Profiling] = []


def _say(profiling: Profiling, *, as_json: bool, pid: int) -> None:
    if os.getpid() != pid:
        return
    try:
        profiling.stop()
    except Exception as error:  # noqa: BLE001 - the program is over, and what it did stands
        sys.stderr.write(f"aliquot: no profile: {error}\n")
        return
    text = json.dumps(profiling.as_dict()) if as_json else str(profiling)
    sys.stderr.write(f"{text}\n")
