"""`access bootstrap`: an administrator's token, for whoever may enter the coordinator's own folder on its machine."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from aliquot.cli import _options as options
from aliquot.cli._exits import Exit
from aliquot.cli._out import Out
from aliquot.cli.commands.logging_in import show_identity
from aliquot.cli.localpool.layout import Layout
from aliquot.cli.localpool.record import PoolRecord
from aliquot.client import NotFound, Pool, Unavailable
from aliquot.client.access import Identity
from aliquot.client.credentials import Credential, CredentialsFile
from aliquot.client.local import state_folder
from aliquot.common.errors import SecurityError
from aliquot.common.tls import is_local_address

SOCKET = "admin.sock"
AUTHORITY = "ca.pem"
"""The authority of the coordinator's own certificate, beside the socket."""


def bootstrap(args: argparse.Namespace) -> int:
    """Get the token, keep it for the coordinator of this machine, and say who one is now."""
    out = Out.of(args)
    socket = args.socket or _find_socket()
    with options.open_pool(args, [f"unix:{socket}"], token="", patient=False) as pool:
        made = pool.access.bootstrap(revoke_others=args.revoke_others)
    addresses = _addresses(args.coordinator, socket)
    authority = _authority(socket.with_name(AUTHORITY))
    kept, identity = _try(args, Credential(addresses, made.token, authority))
    file = CredentialsFile.of(os.environ)
    file.put(kept, current=True)
    if identity is None:
        out.note(f"the token is kept in {file.path}, for {', '.join(addresses)}, where no coordinator answers now")
        return Exit.UNAVAILABLE
    return show_identity(out, identity, addresses, str(file.path), "logged in to")


def _find_socket() -> Path:
    folders = (Path("/var/lib/aliquot"), state_folder(os.environ), Layout.of(None).root)
    closed = False
    for folder in folders:
        try:
            if (folder / SOCKET).is_socket():
                return folder / SOCKET
        except PermissionError:
            closed = True
    if closed:
        raise SecurityError(
            "the coordinator's folder is not yours to enter", hint="be its user, or root: sudo aliquot access bootstrap"
        )
    raise NotFound(
        "no coordinator's socket is in " + ", ".join(map(str, folders)),
        hint="run this on the coordinator's machine, or name its access.dir: --socket DIR/admin.sock",
        reason="NO_SOCKET",
    )


def _addresses(named: str | None, socket: Path) -> tuple[str, ...]:
    """The coordinator behind the socket: as it is named, as `aliquot up` has recorded it, else this machine's. A pool
    elsewhere that the settings name would be sent this one's token.
    """
    record = PoolRecord.read(Layout(socket.parent))
    if named is None and record is not None:
        named = record.coordinator
    with Pool(named, token="") as pool:
        addresses = pool.addresses
    if named is None and not all(map(is_local_address, addresses)):
        with Pool("localhost") as pool:
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
