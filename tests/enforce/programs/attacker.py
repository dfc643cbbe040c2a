"""Programs that know how leases are held to their limits, and try to hold more for as long as they can.

    attacker.py SOCKET SECRET ATTACK LEASE WAY AGENT_PID

This process stays outside any lease. It starts a child that attaches itself and attacks, and another one whenever that
child is gone, until the agent does not take it any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from aliquot.common.cuda import Driver
from aliquot.v1 import local_pb2
from bench.lib.cuda_ways import WAYS
from tests.agent.localclient import ask

SOCKET, SECRET, ATTACK, LEASE, WAY, AGENT_PID = sys.argv[1:]
GIB = 1 << 30
MUCH_BYTES = 28 * GIB
WORKER_BYTES = 3 * GIB
LANES = 6
GRACE_S = 1.0
REFUSED = 3


def attach() -> None:
    """Ends this process where the agent does not take it."""
    request = local_pb2.AttachRequest(lease_id=LEASE, secret=SECRET)
    try:
        answer = ask(SOCKET, local_pb2.LocalRequest(attach=request))
    except OSError:
        os._exit(1)
    if answer.HasField("error"):
        os._exit(REFUSED if answer.error.reason in ("LEASE_NOT_HERE", "NOT_HERE") else 1)
    for name, value in answer.attach.environment.items():
        if name != "LD_PRELOAD":
            os.environ[name] = value


def take(size_bytes: int = MUCH_BYTES) -> Callable[[], None]:
    """What gives it back."""
    return WAYS[WAY](Driver(0), size_bytes)


def on_sigterm(handler: Callable[[], None] | None) -> None:
    """None: it is ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN if handler is None else lambda number, frame: handler())


def child(work: Callable[[], None]) -> int:
    """Start a process that does this, with the usual handling of SIGTERM."""
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(BaseException):
        work()
    os._exit(0)


def one_after_another(work: Callable[[], None]) -> None:
    """A fresh child as soon as one has ended. The parent holds nothing, so nothing is done to it."""
    while True:
        os.waitpid(child(work), 0)


def hold(seconds: float = 3600.0) -> None:
    held = take()
    time.sleep(seconds)
    held()


def relay() -> None:
    """Obeys SIGTERM at once; a successor goes on."""
    one_after_another(hold)


def respawn() -> None:
    """Ignores SIGTERM, and is started again when it is killed."""

    def work() -> None:
        on_sigterm(None)
        hold()

    one_after_another(work)


def hand_on() -> None:
    """Ignores SIGTERM, and hands over before its grace has passed."""

    def work() -> None:
        on_sigterm(None)
        hold(0.7 * GRACE_S)

    one_after_another(work)


def slow_exit() -> None:
    """Takes as long to end as it may, and gives the memory back in the last moment."""

    def work() -> None:
        asked: list[float] = []
        on_sigterm(lambda: asked.append(time.monotonic()))
        held = take()
        while not asked or time.monotonic() - asked[0] < 0.9 * GRACE_S:
            time.sleep(0.01)
        held()
        time.sleep(0.1)

    one_after_another(work)


def stop_and_continue() -> None:
    """Is stopped while it holds the memory, so that no SIGTERM reaches it; its parent lets it go on now and then."""

    def work() -> None:
        held = take()
        os.kill(os.getpid(), signal.SIGSTOP)
        held()

    while True:
        pid = child(work)
        os.waitpid(pid, os.WUNTRACED)
        time.sleep(0.8 * GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)


def rotation() -> None:
    """Workers within the limit each, several at a time, that live for milliseconds."""

    def work() -> None:
        held = take(WORKER_BYTES)
        time.sleep(random.uniform(0.005, 0.1))
        held()

    for _ in range(LANES - 1):
        child(lambda: one_after_another(work))
    one_after_another(work)


def polls() -> Iterator[float]:
    """When the agent has just worked: the processor time of its threads is there for everybody to read."""
    before = -1
    while True:
        now = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{AGENT_PID}/task").glob("*/schedstat"))
        if before >= 0 and now - before > 300_000:
            yield time.monotonic()
            now = -1
        before = now
        time.sleep(0.003)


def dodge() -> None:
    """Watches the agent: after each of its polls it holds the memory for as long as it has got away with so far."""

    def work() -> None:
        asked: list[float] = []
        on_sigterm(lambda: asked.append(time.monotonic()))
        driver, lasts_s = Driver(0), 0.5
        for _ in polls():
            held = WAYS[WAY](driver, MUCH_BYTES)
            time.sleep(lasts_s)
            held()
            if asked:
                asked.clear()
                lasts_s = max(0.01, lasts_s / 2)

    one_after_another(work)


def sip() -> None:
    """Watches the agent, and is content with the time after each poll in which it knows that no other comes."""

    def work() -> None:
        driver = Driver(0)
        for _ in polls():
            held = WAYS[WAY](driver, MUCH_BYTES)
            time.sleep(0.02)
            held()

    one_after_another(work)


def phase() -> None:
    """Learns from its first SIGTERM when polls come, and holds the memory between where the next ones would be."""

    def work() -> None:
        asked: list[float] = []
        on_sigterm(lambda: asked.append(time.monotonic()))
        driver = Driver(0)
        held = WAYS[WAY](driver, MUCH_BYTES)
        while not asked:
            time.sleep(0.005)
        held()
        polled = asked[-1]
        while True:
            time.sleep(max(0.0, polled + 0.1 - time.monotonic()))
            held = WAYS[WAY](driver, MUCH_BYTES)
            time.sleep(max(0.0, polled + 0.8 - time.monotonic()))
            held()
            polled += 1.0

    one_after_another(work)


def file_lease() -> None:
    """Has whoever opens its account file wait, and holds the memory meanwhile."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    folder = os.environ.get("ATTACKED_FOLDER", "")
    for kind, flags in ((fcntl.F_RDLCK, os.O_RDONLY), (fcntl.F_WRLCK, os.O_RDWR)):
        with contextlib.suppress(OSError):
            fcntl.fcntl(os.open(f"{folder}/account", flags), fcntl.F_SETLEASE, kind)
    relay()


def early() -> None:
    """Attaches only when it holds the memory already."""
    held = take()
    attach()
    on_sigterm(None)
    time.sleep(3600)
    held()


ATTACKS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        relay,
        respawn,
        hand_on,
        slow_exit,
        stop_and_continue,
        rotation,
        dodge,
        sip,
        phase,
        file_lease,
        early,
    )
}


def main() -> None:
    ctypes.CDLL(None)  # what every child needs is loaded once
    while True:
        pid = os.fork()
        if not pid:
            os.setsid()
            if early.__name__ != ATTACK:
                attach()
            ATTACKS[ATTACK]()
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == REFUSED:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
