"""TLS without files: a coordinator that others can reach and that was given no certificate makes its own.

It is signed by the pool's authority (`agents.authority`), names all that the coordinator can be reached by, and is
renewed at half its life. What callers need to trust it is written to `ca.pem` in the folder of the coordinator's
secrets, beside being in every string to connect with.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from aliquot.common.errors import ConfigError
from aliquot.common.own_files import make_private, write_whole
from aliquot.common.tls import MadePair, OwnTls, ServerTls, host_of, is_local_address
from aliquot.coordinator.core.books.enrolment import Generation
from aliquot.coordinator.settings.config import Settings

log = logging.getLogger(__name__)

CA_FILE = "ca.pem"
_ANY = ("", "*", "0.0.0.0", "::")  # noqa: S104 - to know them by
_ROUTES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation: nothing is sent, the machine only says from where it would."""


def tls_for(
    settings: Settings, pool_secret: bytes, generations: Callable[[], tuple[Generation, ...]], now_ms: Callable[[], int]
) -> ServerTls | OwnTls | None:
    """How to listen: as configured; where nothing is, in the clear within this machine, else with our own certificate,
    by the pool's authority of which there are these `generations`. Raises ConfigError.
    """
    configured = settings.tls.server_tls()
    if configured is not None or is_local_address(settings.listen):
        return configured
    from aliquot.coordinator.agents.authority import PoolAuthority  # noqa: PLC0415 - cryptography, only where it is used

    authority = PoolAuthority(pool_secret, generations)
    file = settings.access_dir() / CA_FILE
    _put_down(file, authority.now().pem)
    log.info("the coordinator's certificate is of the pool's own authority, for %s", ", ".join(names_of(settings)))

    def make() -> MadePair:
        now = authority.now()
        try:
            _put_down(file, now.pem)
        except ConfigError as error:  # whom to trust can be asked for, too
            log.warning("%s", error)
        return now.serve_as(names_of(settings), now_ms())

    return OwnTls(make, now_ms, generations)


def is_shown(settings: Settings) -> bool:
    """Whether callers see a certificate of the pool's own authority; else it is configured, or there is no TLS."""
    return settings.tls.server_tls() is None and not is_local_address(settings.listen)


def addresses_of(settings: Settings, listening: str) -> tuple[str, ...]:
    """Where others reach a coordinator that listens there: `host:port` each, or a unix: socket."""
    if settings.advertise:
        return (settings.advertise,)
    if listening.startswith("unix") or host_of(listening) not in _ANY:
        return (listening,)
    port = listening.rpartition(":")[2]
    names = dict.fromkeys([*settings.access.names, *_out()])
    return tuple(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names)


def names_of(settings: Settings) -> tuple[str, ...]:
    """Names and addresses by which a coordinator can be reached."""
    listen = host_of(settings.listen)
    names = [*settings.access.names]
    if settings.advertise:
        names.append(host_of(settings.advertise))
    if listen not in _ANY:
        names.append(listen)
    return tuple(dict.fromkeys([*names, *_of_machine()]))


def _of_machine() -> list[str]:
    name = socket.gethostname()
    names = [name, socket.getfqdn(), "localhost", "127.0.0.1", "::1", *_out()]
    with contextlib.suppress(OSError):
        names += [str(found[4][0]) for found in socket.getaddrinfo(name, None)]
    return [each for each in names if each and each.isascii()]


def _out() -> list[str]:
    """This machine's addresses on the way out; its name where it has no way out."""
    names = []
    for family, somewhere in _ROUTES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as asking:
                asking.connect((somewhere, 9))
                names.append(str(asking.getsockname()[0]))
        except OSError:
            continue  # no way out by this family
    return names or [socket.gethostname()]


def _put_down(file: Path, pem: bytes) -> None:
    """Whole or as it was. Raises ConfigError."""
    try:
        if file.is_file() and file.read_bytes() == pem:
            return
        make_private(file.parent)
        write_whole(file, pem, mode=0o644)
    except OSError as error:
        raise ConfigError(
            f"{file}: {error.strerror}", hint="name a folder for the coordinator's secrets: access.dir"
        ) from error
