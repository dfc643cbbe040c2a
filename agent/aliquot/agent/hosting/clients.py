"""What a service is told of its clients: where they reach it, and how it knows them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence

import msgspec

from aliquot.agent.core.model import SliceSpec
from aliquot.common.tls import host_of, is_local_address

ALL, NONE = "all", "none"
LOOPBACK = "127.0.0.1"


def chosen(offer: Sequence[str], installed: Collection[str]) -> frozenset[str]:
    """The installed services among these names."""
    if NONE in offer:
        return frozenset()
    return frozenset(installed) if ALL in offer else frozenset(installed) & frozenset(offer)


class Reached(msgspec.Struct, frozen=True):
    """`advertise` and `ports` as they are set; `coordinators` are the addresses to which the way is looked up."""

    advertise: str = ""
    ports: str = ""
    coordinators: Callable[[], Sequence[str]] = tuple

    def environment(self) -> dict[str, str]:
        """For a service. Blocks, where a name has to be resolved."""
        host = self.advertise or own_address(self.coordinators())
        return {"ALIQUOT_SERVING_HOST": host, "ALIQUOT_SERVING_PORTS": self.ports}


def of_lease(spec: SliceSpec) -> dict[str, str]:
    """For a service: whose the lease is, how its clients prove themselves, and how long its end takes. No secret."""
    return {
        "ALIQUOT_TENANT": spec.tenant,
        "ALIQUOT_SERVING_CREDENTIAL_SHA256": spec.serving_credential_sha256.hex(),
        "ALIQUOT_GRACE_MS": str(spec.grace_ms),
    }


def own_address(coordinators: Sequence[str]) -> str:
    """This machine's address on the way to a coordinator: who reaches that usually reaches this. Nothing is sent."""
    for address in coordinators:
        if address.startswith("unix") or is_local_address(address):
            return LOOPBACK
        host, port = host_of(address), address.rpartition(":")[2]
        try:
            family, kind, _, _, target = socket.getaddrinfo(
                host, int(port) if port.isdecimal() else 1, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind) as probe:
                probe.connect(target)
                found: str = probe.getsockname()[0]
                return found
        except OSError:
            continue
    return LOOPBACK
