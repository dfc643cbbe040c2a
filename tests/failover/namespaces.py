"""Machines of a kind: network namespaces, each joined to this one by a cable of its own, whose ways can be cut.

A way that is cut swallows packets and tells nobody, as a broken switch does. Needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NETWORK = "10.213.0.0/16"


def why_not() -> str:
    """Why there can be no namespaces here; empty where there can."""
    if shutil.which("ip") is None:
        return "needs iproute2"
    probe = f"aliquot-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=False, capture_output=True)
    return ""


@dataclass
class Namespace:
    """One of them. This machine has two addresses on its cable: one for callers, one for the database."""

    number: int
    name: str = field(init=False)
    cut_off: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.name = f"aliquot-{os.getpid()}-{self.number}"

    @property
    def address(self) -> str:
        """Within the namespace."""
        return f"10.213.{self.number}.2"

    @property
    def callers(self) -> str:
        """From where callers on this machine reach it."""
        return f"10.213.{self.number}.1"

    @property
    def database(self) -> str:
        """Where it finds this machine's database."""
        return f"10.213.{self.number}.3"

    @property
    def before(self) -> list[str]:
        """The words before a command that is to run in it."""
        return ["ip", "netns", "exec", self.name]

    def make(self) -> None:
        here, there = f"aq{self.number}h{os.getpid() % 100_000}", "cable"
        _ip("netns", "add", self.name)
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
        for address in (self.callers, self.database):
            _ip("address", "add", f"{address}/24", "dev", here)
        _ip("link", "set", here, "up")
        self._within("address", "add", f"{self.address}/24", "dev", there)
        self._within("link", "set", there, "up")
        self._within("link", "set", "lo", "up")
        # A cable to nowhere: without ARP what is sent goes out at once, and nobody takes it in.
        self._within("link", "add", "hole", "type", "veth", "peer", "name", "bottom")
        self._within("link", "set", "hole", "arp", "off", "up")
        self._within("link", "set", "bottom", "up")

    def cut(self, *ways: str) -> None:
        """Nothing that it sends to these addresses arrives any more."""
        for way in ways:
            self._within("route", "add", f"{way}/32", "dev", "hole")
            self.cut_off.add(way)

    def heal(self) -> None:
        """All ways are open again."""
        for way in self.cut_off:
            self._within("route", "del", f"{way}/32", "dev", "hole")
        self.cut_off.clear()

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def _within(self, *words: str) -> None:
        _ip("-n", self.name, *words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[Namespace]]:
    """So many, removed at the end."""
    with contextlib.ExitStack() as stack:
        several = [Namespace(stack.enter_context(_network_of_its_own())) for _ in range(count)]
        yield from _made(several)


def _made(several: list[Namespace]) -> Iterator[list[Namespace]]:
    try:
        for namespace in several:
            namespace.make()
        yield several
    finally:
        for namespace in several:
            namespace.remove()


@contextlib.contextmanager
def _network_of_its_own() -> Iterator[int]:
    """The number of a network that nobody else has, neither other tests at this moment, each of which holds a lock,
    nor ones that were killed and left their cables.
    """
    left_behind = subprocess.run(["ip", "-o", "-4", "address"], check=True, capture_output=True, text=True).stdout
    for number in range(1, 255):
        if f" 10.213.{number}." in left_behind:
            continue
        with (Path(tempfile.gettempdir()) / f"aliquot-network-{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield number
            return
    raise RuntimeError("every network of 10.213.0.0/16 is taken: remove namespaces that tests left (ip netns list)")
