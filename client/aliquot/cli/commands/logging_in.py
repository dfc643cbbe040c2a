"""`login`, `logout` and `whoami`: the token that this user shows to a pool."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from aliquot.cli import _options as options
from aliquot.cli._command import Work, no_options
from aliquot.cli._identity import keep, show_identity
from aliquot.cli._out import Out
from aliquot.client import NotFound, NotLoggedIn, Pool, Unavailable
from aliquot.client.access import LoginOffer
from aliquot.client.credentials import Credential, CredentialsFile, read_token_file
from aliquot.common.connection_string import CHARS_MAX, PREFIX, decode
from aliquot.common.errors import ConfigError
from aliquot.common.tokens import check_token


def _configure_login(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "An administrator, or the manager of your tenant, gets the string from `aliquot access token NAME`.\n"
        "Arguments can be seen by other users of a machine while a command runs: where that matters, write - and\n"
        "give the string on standard input.\n"
        "Where the pool has an OpenID provider, `aliquot login` alone opens its page.\n"
        "A token alone does too, on standard input or with --token-file, for the pool that --coordinator names."
    )
    parser.add_argument("string", nargs="?", metavar="STRING", help="alq1.…, or - to read it from standard input")
    parser.add_argument("--ca-file", type=Path, metavar="FILE", help="the authority to trust (PEM), without a string")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--oidc", action="store_true", help="at the pool's OpenID provider, in a browser on this machine")
    way.add_argument("--device", action="store_true", help="the same, in a browser anywhere: over SSH")
    way.add_argument(
        "--service-account", type=Path, metavar="FILE", help="in a pod: its projected token, as docs/access.md has it"
    )
    parser.add_argument("--no-browser", action="store_true", help="only say which page to open")


def _login(args: argparse.Namespace, out: Out) -> None:
    given = _given(args) if args.string is not None or args.token_file is not None else _session(args, out)
    with options.open_pool(args, given.addresses, token=given.token, ca=given.ca) as pool:
        # Asked before it is kept: what does not work should not stand in the way of what does.
        identity = pool.access.whoami()
        addresses = pool.addresses
    file = keep(out, Credential(addresses, given.token, given.ca, given.issuer), identity)
    show_identity(out, identity, addresses, str(file.path), "logged in to")


def _session(args: argparse.Namespace, out: Out) -> Credential:
    """A session, for whom the pool's OpenID provider vouches for."""
    with Pool(args.coordinator, token="") as meant:
        known = CredentialsFile.of(os.environ).find(meant.addresses)
    authority = _authority(args) or (known.ca if known is not None else "")
    with options.open_pool(args, token="", ca=authority) as pool:
        if args.service_account is not None:
            issued = pool.access.login(service_account_token=_read(args.service_account))
            return Credential(pool.addresses, issued.token, authority)
        from aliquot.cli._oidc import by_device, in_browser  # noqa: PLC0415 - an HTTP server, for this alone

        offer = _offer(args, pool)
        vouchers = (
            by_device(offer, out.note) if args.device else in_browser(offer, out.note, browser=not args.no_browser)
        )
        issued = pool.access.login(id_token=vouchers.id_token, nonce=vouchers.nonce)
        return Credential(pool.addresses, issued.token, authority, offer.issuer)


def _offer(args: argparse.Namespace, pool: Pool) -> LoginOffer:
    why = "has no OpenID provider"
    try:
        offer = pool.access.describe_login()
    except Unavailable:
        if args.oidc or args.device or args.service_account is not None:
            raise
        why = "does not answer"
    else:
        if offer.issuer:
            return offer
    raise ConfigError(
        f"what to log in with is missing: {pool.addresses[0]} {why}",
        hint="aliquot login STRING, or - to read it from standard input",
    )


def _given(args: argparse.Namespace) -> Credential:
    """What is to be kept; no addresses: the pool that is meant anyway."""
    if args.oidc or args.device:
        raise ConfigError("a token, and a login at the provider", hint="give one of the two")
    named = tuple(filter(None, (args.coordinator or "").split(",")))
    if args.string is None:
        return Credential(named, read_token_file(args.token_file), _authority(args))
    if args.token_file is not None:
        raise ConfigError("a login string, and a file with a token", hint="give one of the two")
    text = sys.stdin.read(CHARS_MAX + 1).strip() if args.string == "-" else args.string
    if not text.strip().startswith(PREFIX):
        where = "standard input" if args.string == "-" else "the argument"
        return Credential(named, check_token(text, where), _authority(args))
    said = decode(text)
    if said.node:
        raise ConfigError(
            f"this string is for the node {said.node}, not for a person", hint="run `aliquot-agent join` with it there"
        )
    token = check_token(said.token, "this string")
    return Credential(named or said.addresses, token, said.ca_pem or _authority(args))


def _authority(args: argparse.Namespace) -> str:
    return "" if args.ca_file is None else _read(args.ca_file)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: {said}", hint="name a file of text that you can read") from None


def _configure_logout(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Whoever has a copy of the token can still use it, unless --revoke ends it."
    parser.add_argument("--revoke", action="store_true", help="end the token at the coordinator, too")


def _logout(args: argparse.Namespace, out: Out) -> None:
    file = CredentialsFile.of(os.environ)
    with Pool(args.coordinator) as pool:
        addresses = pool.addresses
    known = file.find(addresses)
    if known is None:
        raise NotFound(
            f"{file.path} has nothing for {', '.join(addresses)}", hint="name another --coordinator", reason="NO_LOGIN"
        )
    if args.revoke:
        _revoke(args, known)
    file.remove(addresses)
    out.document({"coordinator": list(known.addresses), "revoked": args.revoke})
    out.show(f"logged out of {', '.join(known.addresses)}" + (", and ended the token" if args.revoke else ""))


def _revoke(args: argparse.Namespace, known: Credential) -> None:
    """End the token that is kept. One that does not count any more needs no ending."""
    with options.open_pool(args, token=known.token) as pool, contextlib.suppress(NotLoggedIn):
        pool.access.revoke_tokens([pool.access.whoami().token_id])


def _whoami(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    show_identity(out, pool.access.whoami(), pool.addresses, pool.token_origin)


LOGIN = Work(_configure_login, _login)
LOGOUT = Work(_configure_logout, _logout)
WHOAMI = Work(no_options, options.on_pool(_whoami))
