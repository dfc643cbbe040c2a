"""Who somebody is to a pool, as `login`, `whoami` and `access bootstrap` keep and show it."""

from __future__ import annotations

import os
from dataclasses import replace

from aliquot.cli import _words as words
from aliquot.cli._json import plain
from aliquot.cli._out import Out
from aliquot.client import Pool
from aliquot.client.access import Identity
from aliquot.client.credentials import Credential, CredentialsFile, same_place


def keep(out: Out, kept: Credential, identity: Identity | None) -> CredentialsFile:
    """Keep this for the pool that is meant from now on, by its id and with all the addresses that it says it has; and
    say so where other settings still mean another.
    """
    if identity is not None:
        all_of_it = replace(kept, addresses=identity.coordinators).reached_by(kept.addresses)
        kept = replace(kept, addresses=all_of_it, pool=identity.pool_id)
    file = CredentialsFile.of(os.environ)
    file.put(kept, current=True)
    with Pool() as meant:
        if not any(same_place(one, other) for one in meant.addresses for other in kept.addresses):
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
