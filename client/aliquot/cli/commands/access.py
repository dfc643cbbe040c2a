"""`access grant|revoke|ls|token|audit|denials|authority|bootstrap`: who may do what, and who did."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from aliquot.cli import _options as options
from aliquot.cli import _words as words
from aliquot.cli._actions import action, action_alone, run_action
from aliquot.cli._bootstrapping import bootstrap
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._parser import seconds
from aliquot.cli._table import table, table_of
from aliquot.client import Pool
from aliquot.client.access import Authority, AuthorityUse, Principal, Role, RoleGrant, Token
from aliquot.common.errors import ConfigError
from aliquot.common.own_files import write_whole
from aliquot.common.tls import is_local_address

_GIVABLE = tuple(role for role in Role if role not in {Role.UNSPECIFIED, Role.AGENT})
_EPILOG = """\
Roles: viewer (reads), user (asks for leases, keeps and ends its own), manager (all leases of a tenant, and what is
below it), operator (nodes, maintenance, any release), admin (everything); metrics and console are for programs.
viewer, user and manager can be on a tenant, and are then on all below it too. Nobody gives more than they have.
"""
_MAKING_EPILOG = """\
  aliquot access token ann --role user --tenant vision --ttl 30d     makes a token and prints how to log in with it
  aliquot access token ls [PRINCIPAL]                                lists tokens, without their secrets
  aliquot access token revoke ID...                                  ends tokens, and streams opened with them
  aliquot access token revoke --principal ann                        ends all of ann's

What is printed holds a secret, on standard output and nowhere else; the coordinator keeps only its SHA-256.
"""


_AUTHORITY_EPILOG = """\
  aliquot access authority ls       which generations are trusted, and who does not trust the latest yet
  aliquot access authority rotate   begins another, trusted beside the one of now; nothing else changes
  aliquot access authority retire   coordinators show the later one, and the older is trusted no more
  aliquot access authority pem      prints whom to trust, for files that others read

Agents, and commands and programs that have logged in take up the later one by themselves.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(metavar="ACTION", required=True, title="actions")
    for name, text, act in (
        ("grant", "give a role", _grant),
        ("revoke", "take a role away", _revoke),
    ):
        change = action(actions, name, text, act)
        change.add_argument("principal", metavar="PRINCIPAL", help="a person or a service: ann, ci/nightly")
        change.add_argument("role", type=_role, metavar="ROLE", help=_words())
        change.add_argument("--tenant", "-t", default="", help="on this tenant and all below it (default: the pool)")
    action(actions, "ls", "list principals with their roles", _ls)
    _configure_token(action(actions, "token", "make, list or end tokens", _token))
    audit = action(actions, "audit", "who changed what, the latest first", _audit)
    audit.add_argument("--who", default="", metavar="PRINCIPAL", help="only what this one did")
    audit.add_argument("--since", type=seconds, default=0.0, metavar="TIME", help="not longer ago than: 1h")
    audit.add_argument("--limit", type=options.positive, default=100, metavar="N", help="at most (100)")
    action(actions, "denials", "what was refused lately", _denials)
    authority = action(actions, "authority", "the pool's own certificate authority, and its exchange", _authority)
    authority.epilog = _AUTHORITY_EPILOG
    authority.add_argument("what", choices=("ls", "rotate", "retire", "pem"), metavar="ls | rotate | retire | pem")
    authority.add_argument(
        "--force", action="store_true", help="with retire: also where somebody trusts only the older"
    )
    first = action_alone(actions, "bootstrap", "become administrator, on the coordinator's machine", bootstrap)
    first.epilog = (
        "Goes through a socket in the coordinator's own folder: whoever may enter that is administrator. It works\n"
        "when every token is lost. The new token is kept for this user, as `aliquot login` does."
    )
    first.add_argument("--socket", type=Path, metavar="PATH", help="default: admin.sock of a coordinator found here")
    first.add_argument("--revoke-others", action="store_true", help="end all tokens that were made this way before")


def _configure_token(parser: argparse.ArgumentParser) -> None:
    parser.usage = "aliquot access token PRINCIPAL [options] | ls [PRINCIPAL] | revoke ID..."
    parser.epilog = _MAKING_EPILOG
    parser.add_argument("what", metavar="PRINCIPAL | ls | revoke")
    parser.add_argument("names", nargs="*", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--role", type=_role, metavar="ROLE", help="give it this role, too: " + _words())
    parser.add_argument("--tenant", "-t", default="", help="on this tenant and all below it (default: the pool)")
    parser.add_argument("--ttl", type=options.whole_seconds, default=0, metavar="TIME", help="30d (default: for ever)")
    parser.add_argument("--note", default="", help="for people: what it is for")
    parser.add_argument("--raw", action="store_true", help="print the token alone")
    parser.add_argument(
        "--file", type=Path, help="write the token there, for nobody else to read, and print nothing of it"
    )
    parser.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="the coordinator as it is reached from there (default: as from here, or as it says itself)",
    )
    parser.add_argument("--principal", default="", metavar="PRINCIPAL", help="with revoke: all of this one's")


def _role(text: str) -> Role:
    try:
        role = Role(text.upper())
    except ValueError:
        role = Role.UNSPECIFIED
    if role not in _GIVABLE:
        raise argparse.ArgumentTypeError(f"{text!r} is not a role to give; one of {_words()}")
    return role


def _words() -> str:
    return ", ".join(role.lower() for role in _GIVABLE)


def _grant(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    _show_principal(out, pool.access.grant_role(args.principal, args.role, scope=args.tenant))


def _revoke(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    _show_principal(out, pool.access.revoke_role(args.principal, args.role, scope=args.tenant))


def _show_principal(out: Out, principal: Principal) -> None:
    out.document(principal)
    out.show(f"{principal.name}: {words.grants(principal.grants)}")
    if not principal.tokens and principal.grants:
        out.note(f"{principal.name} has no token yet: `aliquot access token {principal.name}` makes one")


def _ls(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    principals = pool.access.principals()
    out.document({"principals": principals})
    rows = [(each.name, words.grants(each.grants), str(each.tokens)) for each in principals]
    out.show(table("PRINCIPAL", "ROLES", ("TOKENS", "right"), rows=rows))


def _token(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    if args.what in _OF_TOKENS:
        _OF_TOKENS[args.what](pool, args, out)
        return
    if args.names:
        raise ConfigError(f"{args.names[0]!r} is too much", hint="aliquot access token PRINCIPAL [options]")
    if args.tenant and args.role is None:
        raise ConfigError(f"a tenant, but no role on {args.tenant}", hint="add --role user, or leave --tenant out")
    grants = [] if args.role is None else [RoleGrant(args.role, args.tenant)]
    made = pool.access.issue_token(args.what, grants=grants, ttl_ms=args.ttl * 1000, note=args.note)
    # What this machine calls itself says nothing to others; the coordinator knows better.
    at_home = all(map(is_local_address, pool.addresses))
    reached = made.addresses if at_home else tuple(dict.fromkeys([*pool.addresses, *made.addresses]))
    addresses = args.address or reached
    known = at_home or pool.trusts_some_of(made.ca_pem)  # else there is another authority in between, which counts
    login = pool.connection_string(made.token, addresses=addresses, ca_pem=made.ca_pem if known else "")
    if args.file is not None:
        _keep(args.file, made.token, made.issued.token_id)
        out.document({"file": str(args.file), "issued": made.issued})
        out.note(f"written to {args.file}, for nobody else to read")
    else:
        out.document({"token": made.token, "login": login, "issued": made.issued})
        out.word(made.token if args.raw else f"aliquot login {login}")
    out.note(f"token {made.issued.token_id} of {made.issued.principal}, {words.expiry(made.issued.expires_ms)}")
    if args.file is None and not args.raw and all(map(is_local_address, addresses)):
        out.note(f"it names {', '.join(addresses)}, which is this machine only: for others, add --address HOST:PORT")


def _keep(file: Path, token: str, token_id: str) -> None:
    try:
        write_whole(file, token.encode() + b"\n")
    except OSError as error:
        raise ConfigError(
            f"{file}: {error.strerror}, so nobody has token {token_id}",
            hint=f"aliquot access token revoke {token_id}, and name a file that can be written",
        ) from error


def _list_tokens(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    if len(args.names) > 1:
        raise ConfigError(f"{args.names[1]!r} is too much", hint="aliquot access token ls [PRINCIPAL]")
    found = pool.access.tokens(args.names[0] if args.names else args.principal)
    out.document({"tokens": found})
    if not found:
        out.note("no tokens")
    else:
        out.show(_tokens(found))


def _revoke_tokens(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    if not args.names and not args.principal:
        raise ConfigError("which tokens?", hint="aliquot access token revoke ID..., or --principal NAME for all of one")
    ended = pool.access.revoke_tokens(args.names, principal=args.principal)
    out.document({"tokens": ended})
    out.show(f"ended {len(ended)} token{'' if len(ended) == 1 else 's'}")


_OF_TOKENS = {"ls": _list_tokens, "revoke": _revoke_tokens}


def _tokens(found: Sequence[Token]) -> Table:
    now_ms = int(time.time() * 1000)
    return table_of(
        found,
        {
            "TOKEN": lambda each: each.token_id,
            "PRINCIPAL": lambda each: each.principal,
            "AGE": lambda each: words.age(each.created_ms, now_ms),
            "EXPIRES": lambda each: words.moment(each.expires_ms) if each.expires_ms else words.UNKNOWN,
            "MADE BY": lambda each: each.issued_by,
            "NOTE": lambda each: each.note,
        },
        right=("AGE",),
        spare=("NOTE", "MADE BY"),
    )


def _audit(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    since_ms = int((time.time() - args.since) * 1000) if args.since else 0
    found = pool.access.audit(args.who, since_ms=since_ms, entries_max=args.limit)
    out.document(found)
    if not found.entries:
        out.note("nothing was changed")
    else:
        rows = [
            (words.moment(each.at_ms), each.principal, each.action, each.subject, each.peer, each.token_id)
            for each in found.entries
        ]
        spare = ("TOKEN", "FROM")
        out.show(table("WHEN", "WHO", "DID", "TO", "FROM", "TOKEN", spare=spare, rows=rows))
        if since_ms and found.oldest_ms > since_ms:
            out.note(f"what was done before {words.moment(found.oldest_ms)} is no longer kept")


def _denials(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    found = pool.access.denials()
    out.document({"denials": found})
    if not found:
        out.note("nothing was refused lately")
    else:
        rows = [
            (
                words.moment(each.at_ms),
                each.principal or words.UNKNOWN,
                each.method,
                str(each.times),
                each.message,
                each.peer,
            )
            for each in found
        ]
        out.show(table("WHEN", "WHO", "ASKED FOR", ("TIMES", "right"), "WHY NOT", "FROM", spare=("FROM",), rows=rows))


def _authority(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    if args.force and args.what != "retire":
        raise ConfigError("--force is for retire", hint="aliquot access authority retire --force")
    if args.what == "ls":
        _show_authority_use(out, pool.access.authority_use())
        return
    if args.what == "rotate":
        found = pool.access.rotate_authority()
    elif args.what == "retire":
        found = pool.access.retire_authority(force=args.force)
    else:
        found = pool.access.authority()
    out.document(found)
    if args.what == "pem":
        out.word(found.authorities_pem.rstrip("\n"))
    else:
        out.show(_generations(found))
        if args.what == "rotate":
            out.note("it is taken up from now on; `aliquot access authority ls` shows by whom not yet")


def _show_authority_use(out: Out, use: AuthorityUse) -> None:
    out.document(use)
    out.show(_generations(use.authority))
    if not use.authority.shown:
        out.note("coordinators' certificates are not by it: only nodes' are")
    if not use.behind_total:
        out.note("nobody is known to trust only an older one")
        return
    out.note(f"{use.behind_total} have not said yet that they trust the latest:")
    rows = [
        ("node " + each.node_id if each.node_id else each.principal, str(each.generation), each.token_id)
        for each in use.behind
    ]
    out.show(table("WHO", ("TRUSTS", "right"), "TOKEN", rows=rows))


def _generations(authority: Authority) -> Table:
    trusted = [each for each in authority.generations if not each.retired_ms]
    return table_of(
        authority.generations,
        {
            "GENERATION": lambda each: str(each.number),
            "STATE": lambda each: "retired" if each.retired_ms else "shown" if each is trusted[0] else "taken up",
            "BEGUN": lambda each: words.moment(each.begun_ms) if each.begun_ms else words.UNKNOWN,
            "BY": lambda each: each.begun_by or words.UNKNOWN,
            "SHA-256": lambda each: each.sha256,
        },
        right=("GENERATION",),
        spare=("SHA-256",),
    )


ACCESS = Work(_configure, run_action)
