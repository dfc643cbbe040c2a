"""Who somebody is to a pool, as `login`, `whoami` and `access bootstrap` keep and show it."""

from __future__ import annotations

import os

from aliquot.cli import _words as words
from aliquot.cli._json import plain
from aliquot.cli._out import Out
from aliquot.client import Pool
from aliquot.client.access import Identity
from aliquot.client.credentials import Credential, CredentialsFile


def keep(out: Out, kept: Credential) -> CredentialsFile:
    """Keep this for the pool that is meant from now on, and say so where other settings still mean another."""
    file = CredentialsFile.of(os.environ)
    file.put(kept, current=True)
    with Pool() as meant:
        if meant.addresses != kept.addresses:
            out.note(
                f"your settings still name {', '.join(meant.addresses)}: say --coordinator {kept.addresses[0]}, "
                "or change them"
            )
    return file


def show_identity(out: Out, identity: Identity, addresses: tuple[str, ...], origin: str, verb: str = "") -> None:
    """Who somebody is, to which pool, by which token."""
    out.document({**plain(identity), "coordinator": list(addresses), "token_origin": origin})
    place = ", ".join(addresses)
    first = f"{verb} {place} as {identity.principal}" if verb else f"{identity.principal} at {place}"
    out.show(first, f"  may: {words.grants(identity.grants)}")
    of_lease = f", of lease {identity.lease_id}" if identity.lease_id else ""
    out.show(f"  token: {identity.token_id or words.UNKNOWN}{of_lease}, {words.expiry(identity.expires_ms)}; {origin}")
