"""The lease in which the program runs, as its devices: known from the ticket, connected to when one is first used."""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from aliquot.remote.compat import leaving
from aliquot.remote.compat.signals import stop_signal
from aliquot.remote.errors import RemoteError
from aliquot.remote.torch import backend
from aliquot.remote.torch.session import Session as DeviceSession

if TYPE_CHECKING:
    from aliquot.client.ticket import TicketPart
    from aliquot.remote.wire.client import Notice

_CONNECTING = "aliquot: connecting to the lease's devices\n"
SAY_AFTER_S = 1.0
"""How long connecting may take before a line says that the program waits for it."""
_SEED_BITS = 63


class Devices:
    """`cuda:0`, … of this process. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._session: Any = None
        self._connected_in = 0
        self.chosen_seed: int | None = None
        """What the program has called `manual_seed` with."""
        self.current = 0
        self._count = 0
        """Of the lease's parts, once known: the compiler follows what reads a number, and nothing that takes a lock."""

    @property
    def connected(self) -> bool:
        """Whether this process has used one."""
        return self._connected_in == os.getpid()

    @property
    def forked(self) -> bool:
        """Whether it was another process, of which this is a fork, that has used one."""
        return self._connected_in not in {0, os.getpid()}

    def parts(self) -> tuple[TicketPart, ...]:
        """The lease's, whether it is connected to or not; none where the lease's ticket is gone."""
        with self._lock:
            found = tuple(self._opened().parts)
            self._count = len(found)
            return found

    def _opened(self) -> Any:
        if self._session is None:
            # Brings gRPC, which a program that only imports PyTorch need not load.
            from aliquot.remote.session import connect  # noqa: PLC0415

            self._session = connect(on_notice=_told)
        return self._session

    def connect(self) -> None:
        """Connect to every part, unless that was done. Raises `SessionError`, and `RemoteError` in a fork."""
        with self._lock:
            if self.connected:
                return
            if self.forked:
                raise RemoteError(
                    "cuda can't be used in a process that was forked after it was used: start workers by 'spawn', "
                    "or use cuda in the first process alone"
                )
            waiting = threading.Timer(SAY_AFTER_S, sys.stderr.write, [_CONNECTING])
            waiting.daemon = True
            waiting.start()
            self._connected_in = os.getpid()
            try:
                session = self._opened()
                for index in range(len(session.parts)):
                    backend.attach(session.open(index))
            except BaseException:
                self._connected_in = 0
                raise
            finally:
                waiting.cancel()
            if self.chosen_seed is not None:
                self.seed(self.chosen_seed)
            # Checkpointing keeps the state of generators only where it finds this.
            torch.cuda._initialized = True
            atexit.register(leaving.settle)

    def session(self, device: torch.device | str | int | None = None) -> DeviceSession:
        """That of a device; connects first. Raises `RuntimeError` where there is no such device."""
        self.connect()
        return backend.session_of(self.index(device))

    def index(self, device: Any = None) -> int:
        """Which device is meant; None: the current one. Raises `RuntimeError` and `ValueError`."""
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type != "cuda":
                raise ValueError(f"Expected a cuda device, but got: {device}")
            device = device.index
        index = self.current if device is None or device == -1 else int(device)
        count = self._count or len(self.parts())
        if not 0 <= index < count:
            raise RuntimeError(f"invalid device ordinal cuda:{index}: the lease has {count}, from cuda:0 on")
        return index

    def choose(self, device: Any) -> int:
        """Make a device the current one. Returns the one before."""
        before = self.current
        if device is not None and device != -1:
            self.current = self.index(device)
            backend._current = self.current
        return before

    def seed(self, seed: int, device: Any = None, *, every: bool = True) -> None:
        """Seed the generators there: now where they are connected to, else once they are."""
        with self._lock:
            if every or self.index(device) == self.current:
                self.chosen_seed = seed
            if not self.connected:
                return
            chosen = range(len(self.parts())) if every else (self.index(device),)
            for index in chosen:
                backend.session_of(index).seed(seed)


def random_seed() -> int:
    """One that nobody chose."""
    return random.SystemRandom().getrandbits(_SEED_BITS)


def _told(notice: Notice) -> None:
    """The lease will be taken back. The program is told as on a node: by the stop signal, if it cares for that."""
    sys.stderr.write(f"aliquot: the lease ends in {notice.grace_s:.0f} s; save what you need\n")
    what = stop_signal(os.environ)
    if callable(signal.getsignal(what)):
        os.kill(os.getpid(), what)


devices = Devices()
