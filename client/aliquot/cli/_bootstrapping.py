"""`access bootstrap`: an administrator's token, for whoever may enter the coordinator's own folder on its machine."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from aliquot.cli import _options as options
from aliquot.cli._exits import Exit
from aliquot.cli._identity import keep, show_identity
from aliquot.cli._out import Out
from aliquot.cli.localpool.layout import Layout
from aliquot.cli.localpool.record import PoolRecord
from aliquot.client import NotFound, Pool, Unavailable
from aliquot.client.access import Identity, IssuedToken
from aliquot.client.credentials import Credential
from aliquot.client.local import ADMIN_SOCKET, MACHINE_STATE, access_folders, state_folder
from aliquot.common.errors import ConfigError, SecurityError


def bootstrap(args: argparse.Namespace, out: Out) -> int:
    """Get the token, keep it for the coordinator of this machine, and say who one is now."""
    socket, made = _ask(args, [args.socket] if args.socket else _sockets())
    kept, identity = _try(args, _choices(args.coordinator, socket, made))
    file = keep(out, kept, identity)
    if identity is None:
        out.note(f"the token is kept in {file.path}, for {kept.addresses[0]}, where no coordinator answers now")
        return Exit.UNAVAILABLE
    show_identity(out, identity, kept.addresses, str(file.path), "logged in to")
    return Exit.OK


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


def _choices(named: str | None, socket: Path, made: IssuedToken) -> list[Credential]:
    """How the coordinator behind the socket may be reached: as it is named, or `aliquot up` has recorded it; else on
    this machine, then as it says itself. A pool elsewhere that the settings name would be sent this one's token.

    In the clear only at an address of this machine that the coordinator itself says it listens on: at any other,
    another user of the machine may listen.
    """
    record = PoolRecord.read(Layout(socket.parent.parent))
    if named is None and record is not None:
        named = record.coordinator
    places: list[Sequence[str]] = [named.split(",")] if named else [made.addresses]
    if not named and made.ca_pem:
        ports = dict.fromkeys(address.rpartition(":")[2] for address in made.addresses)
        places.insert(0, [f"localhost:{port}" for port in ports if port.isdecimal()])
    choices: list[Credential] = []
    for place in filter(None, places):
        with Pool(place, token="") as pool:
            addresses = pool.addresses
        choices.append(Credential(addresses, made.token, made.ca_pem))
    if not choices:
        raise ConfigError("the coordinator does not say where it is reached", hint="name it: --coordinator HOST:PORT")
    return choices


def _try(args: argparse.Namespace, choices: Sequence[Credential]) -> tuple[Credential, Identity | None]:
    """The first that answers; no identity: none does."""
    for choice in choices:
        several = len(choice.addresses) > 1  # of which one leads: the first may stand by, or be gone
        try:
            with options.open_pool(args, choice.addresses, token=choice.token, ca=choice.ca, patient=several) as pool:
                return choice, pool.access.whoami()
        except (Unavailable, SecurityError):
            continue
    return choices[0], None
