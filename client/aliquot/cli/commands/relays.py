"""`relay invite`: lets a relay carry the sessions of agents."""

from __future__ import annotations

import argparse

from aliquot.cli import _options as options
from aliquot.cli._command import Builtin
from aliquot.cli._exits import Exit
from aliquot.cli._out import Out
from aliquot.client.access import Role, RoleGrant
from aliquot.common.tls import is_local_address


def _configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="COMMAND", required=True)
    invite = commands.add_parser("invite", help="let a relay in: prints the command to run there, once")
    options.common(invite)
    invite.add_argument("relay", metavar="NAME", help="of the relay; it becomes the principal relay/NAME")
    invite.add_argument(
        "--address", action="append", default=[], metavar="HOST:PORT", help="where it reaches the coordinators"
    )


def _run(args: argparse.Namespace) -> int:
    out = Out.of(args)
    principal = f"relay/{args.relay}"
    with options.open_pool(args) as pool:
        made = pool.access.issue_token(principal, grants=[RoleGrant(Role.RELAY)], note="invite of a relay")
        addresses = args.address or made.addresses
        string = pool.connection_string(made.token, addresses=addresses, ca_pem=made.ca_pem)
    if out.as_json:
        out.document({"join": string, "token": made.issued})
        return Exit.OK
    out.word(f"aliquot-relay join {string}")
    out.note(f"for {principal}, once; to take it back: aliquot access token revoke --principal {principal}")
    if addresses and all(map(is_local_address, addresses)):
        out.note(f"it names {', '.join(addresses)}, which is this machine only: for others, add --address HOST:PORT")
    return Exit.OK


RELAY = Builtin("relay", "let a relay carry agents' sessions: invite", _configure, _run)
