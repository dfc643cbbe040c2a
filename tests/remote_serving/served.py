"""A server of a lease in this process, with engines that tests understand, and clients of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aliquot.common.ids import serving_credential
from aliquot.remote.core.endpoint import Endpoint
from aliquot.remote.server.certificate import OwnCertificate, make
from aliquot.remote.server.doorkeeper import Lease, Part
from aliquot.remote.server.listening import Bounds, RemoteServer
from aliquot.remote.wire.client import Locate, Notice, Opening, RemoteChannel, open_channel

SECRET = "the-secret-of-this-lease"
CREDENTIAL = serving_credential(SECRET, "l-1", 1, "research")
LEASE = Lease(
    "l-1",
    1,
    "research",
    hashlib.sha256(CREDENTIAL.encode()).digest(),
    {"l-1.1.0": Part("l-1.1.0", 0, "GPU-1", 1 << 30, 250, "l-1", "research")},
)


class Echo:
    """Answers each frame with itself; counts. `slow` ones wait until they are let go."""

    def __init__(self, answer: Callable[[bytes], None]) -> None:
        self.answer = answer
        self.handled = 0
        self.closed = False

    def handle(self, frame: bytes) -> None:
        self.handled += 1
        if frame.startswith(b"many "):
            for number in range(int(frame[5:])):
                self.answer(b"%d" % number)
        elif frame == b"raise":
            raise RuntimeError("told to")
        elif not frame.startswith(b"quiet"):
            self.answer(frame)

    def close(self) -> None:
        self.closed = True

    def figures(self) -> dict[str, int]:
        return {"ops": self.handled}


@dataclass
class Served:
    """A server that runs."""

    server: RemoteServer
    endpoint: Endpoint
    certificate: OwnCertificate
    engines: list[Echo] = field(default_factory=list)

    def open(
        self,
        what: Opening | None = None,
        *,
        locate: Locate | None = None,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> RemoteChannel:
        return open_channel(self.endpoint, what or opening(), locate=locate, on_notice=on_notice)


def opening(**changed: object) -> Opening:
    """What a client of the lease says, or what it says wrongly."""
    right: dict[str, object] = {
        "lease_id": "l-1",
        "lease_epoch": 1,
        "tenant": "research",
        "slice_id": "l-1.1.0",
        "credential": CREDENTIAL,
        "engine": "echo",
    }
    return Opening(**(right | changed))  # type: ignore[arg-type]


@contextmanager
def serving(bounds: Bounds | None = None, port: int = 0) -> Iterator[Served]:
    """A server on the loopback, with TLS."""
    engines: list[Echo] = []

    def make_engine(name: str, part: Part, answer: Callable[[bytes], None]) -> Echo:
        if name != "echo":
            raise LookupError(f"no engine named {name}")
        engines.append(Echo(answer))
        return engines[-1]

    server = RemoteServer(LEASE, make_engine, "aliquot test", bounds)
    certificate = make()
    bound = server.start("127.0.0.1", port, certificate)
    try:
        yield Served(server, Endpoint("127.0.0.1", bound, certificate.sha256), certificate, engines)
    finally:
        server.stop("STOPPED", "the test is over")
