"""`access bootstrap`: an administrator's token, for whoever may enter the coordinator's own folder on its machine."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aliquot.cli import _options as options
from aliquot.cli._exits import Exit
from aliquot.cli._identity import show_identity
from aliquot.cli._out import Out
from aliquot.cli.localpool.layout import Layout
from aliquot.cli.localpool.record import PoolRecord
from aliquot.client import NotFound, Pool, Unavailable
from aliquot.client.access import Identity, IssuedToken
from aliquot.client.credentials import Credential, CredentialsFile
from aliquot.client.local import ADMIN_SOCKET, MACHINE_STATE, access_folders, state_folder
from aliquot.common.errors import SecurityError
from aliquot.common.tls import is_local_address

AUTHORITY = "ca.pem"
"""The authority of the coordinator's own certificate, beside the socket."""


def bootstrap(args: argparse.Namespace) -> int:
    """Get the token, keep it for the coordinator of this machine, and say who one is now."""
    out = Out.of(args)
    socket, made = _ask(args, [args.socket] if args.socket else _sockets())
    addresses = _addresses(args.coordinator, socket)
    authority = _authority(socket.with_name(AUTHORITY))
    kept, identity = _try(args, Credential(addresses, made.token, authority))
    file = CredentialsFile.of(os.environ)
    file.put(kept, current=True)
    if identity is None:
        out.note(f"the token is kept in {file.path}, for {', '.join(addresses)}, where no coordinator answers now")
        return Exit.UNAVAILABLE
    return show_identity(out, identity, addresses, str(file.path), "logged in to")


def _sockets() -> list[Path]:
    """Those of coordinators that run here, or have run: the machine's, this user's, and that of `aliquot up`."""
    states = (MACHINE_STATE, state_folder(os.environ), Layout.of(None).root)
    found = [folder / ADMIN_SOCKET for state in states for folder in access_folders(state)]
    found = [path for path in found if os.access(path, os.W_OK)]
    if found:
        return found
    if MACHINE_STATE.exists() and not os.access(MACHINE_STATE, os.X_OK):
        raise SecurityError(
            f"{MACHINE_STATE} is not yours to enter",
            hint="be the coordinator's user, or root: sudo aliquot access bootstrap",
        )
    raise NotFound(
        "no coordinator's socket is in " + ", ".join(map(str, states)),
        hint=f"run this on the coordinator's machine, or name its access.dir: --socket DIR/{ADMIN_SOCKET}",
        reason="NO_SOCKET",
    )


def _ask(args: argparse.Namespace, sockets: Sequence[Path]) -> tuple[Path, IssuedToken]:
    """A token from the first that answers: a coordinator that was killed leaves its socket."""
    for socket in sockets[:-1]:
        with contextlib.suppress(Unavailable):
            return socket, _ask_one(args, socket)
    return sockets[-1], _ask_one(args, sockets[-1])


def _ask_one(args: argparse.Namespace, socket: Path) -> IssuedToken:
    with options.open_pool(args, [f"unix:{socket}"], token="", patient=False) as pool:
        return pool.access.bootstrap(revoke_others=args.revoke_others)


def _addresses(named: str | None, socket: Path) -> tuple[str, ...]:
    """The coordinator behind the socket: as it is named, as `aliquot up` has recorded it, else this machine's. A pool
    elsewhere that the settings name would be sent this one's token.
    """
    record = PoolRecord.read(Layout(socket.parent.parent))
    if named is None and record is not None:
        named = record.coordinator
    with Pool(named, token="") as pool:
        addresses = pool.addresses
    if named is None and not all(map(is_local_address, addresses)):
        with Pool("localhost", token="") as pool:
            addresses = pool.addresses
    return addresses


def _authority(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def _try(args: argparse.Namespace, made: Credential) -> tuple[Credential, Identity | None]:
    """Whether the coordinator speaks TLS, which it need not do on loopback; no identity: it does not answer."""
    choices = [replace(made, ca=ca) for ca in dict.fromkeys((made.ca, ""))]
    for choice in choices:
        try:
            with options.open_pool(args, choice.addresses, token=choice.token, ca=choice.ca, patient=False) as pool:
                return choice, pool.access.whoami()
        except (Unavailable, SecurityError):
            continue
    return choices[-1 if all(map(is_local_address, made.addresses)) else 0], None
