"""Who somebody is to a pool, as `login`, `whoami` and `access bootstrap` show it."""

from __future__ import annotations

from aliquot.cli import _words as words
from aliquot.cli._exits import Exit
from aliquot.cli._json import plain
from aliquot.cli._out import Out
from aliquot.client.access import Identity


def show_identity(out: Out, identity: Identity, addresses: tuple[str, ...], origin: str, verb: str = "") -> int:
    """Who somebody is, to which pool, by which token."""
    if out.as_json:
        out.document({**plain(identity), "coordinator": list(addresses), "token_origin": origin})
        return Exit.OK
    place = ", ".join(addresses)
    first = f"{verb} {place} as {identity.principal}" if verb else f"{identity.principal} at {place}"
    out.show(first, f"  may: {words.grants(identity.grants)}")
    of_lease = f", of lease {identity.lease_id}" if identity.lease_id else ""
    out.show(f"  token: {identity.token_id or words.UNKNOWN}{of_lease}, {words.expiry(identity.expires_ms)}; {origin}")
    return Exit.OK
