"""Takes up the next certificate authority of the pool, before the one that the relay trusts is retired.

The coordinator that leads is asked whenever a stream to it begins, and once an hour. What it says is kept beside the
relay's token; streams that are opened from then on trust it.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from aliquot.common.errors import AliquotError
from aliquot.common.tls import fingerprints
from aliquot.relay.config import Settings
from aliquot.relay.joining import CA_FILE, call_at, keep, read_joined
from aliquot.v1 import access_pb2

log = logging.getLogger(__name__)

EVERY_S: Final = 3600.0


async def take_up(settings: Settings, leader: str) -> None:
    """Ask the coordinator there whom to trust, keep it, and say so. What fails is tried the next time."""
    if settings.token_file is not None or settings.tls.coordinator_ca_file != settings.state_dir / CA_FILE:
        return  # whom it trusts is not what joining has brought, and its owner's to replace
    try:
        joined = read_joined(settings.state_dir)
        if joined is None or not joined.ca_pem:
            return
        for _ in range(2):
            trusts = fingerprints(joined.ca_pem)
            asked = access_pb2.GetAuthorityRequest(trusts=trusts)
            said: access_pb2.Authority | None = await call_at(leader, joined, "GetAuthority", asked)
            offered = set(fingerprints(said.authorities_pem)) if said is not None and said.shown else set()
            if said is None or offered == set(trusts) or not offered & set(trusts):
                return
            joined = msgspec.structs.replace(joined, ca_pem=said.authorities_pem)
            keep(settings.state_dir, joined)
            log.info("the pool's authority has changed; whom to trust is kept")
    except AliquotError as error:
        log.warning("whom to trust can't be renewed yet: %s", error)
