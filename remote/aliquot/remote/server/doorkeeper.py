"""Who may come in: the clients of this lease, in this epoch, of this tenant."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock

from aliquot.common.errors import ConfigError
from aliquot.common.text import one_line
from aliquot.remote.core.accounting import Budget
from aliquot.remote.core.versions import VERSION_MAX, VERSION_MIN, choose, spoken
from aliquot.v1 import remote_pb2

_CREDENTIAL_CHARS_MAX = 128


class Refusal(Exception):
    """Why somebody is not let in: a stable word, and a sentence for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Part:
    """One of the lease's slices, as this process sees it."""

    slice_id: str
    ordinal: int
    """Of its device, as CUDA counts those that this process may see."""
    device_uuid: str
    memory_bytes: int
    share_milli: int
    lease_id: str
    tenant: str
    budget: Budget = field(init=False, repr=False, compare=False)
    """Of its memory: whatever engines its sessions have, they share it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", Budget(self.memory_bytes, Lock()))


@dataclass(frozen=True, slots=True)
class Lease:
    """What this process serves, by the environment that the agent gave it."""

    lease_id: str
    lease_epoch: int
    tenant: str
    credential_sha256: bytes
    parts: Mapping[str, Part]
    """By slice."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Lease:
        """Read it. Raises `ConfigError`."""
        try:
            slice_ids = environment["ALIQUOT_SLICE_IDS"].split(",")
            uuids = environment["CUDA_VISIBLE_DEVICES"].split(",")
            memory = environment["ALIQUOT_MEMORY_BYTES"].split(",")
            share = environment["ALIQUOT_SHARE_MILLI"].split(",")
            lease_id, tenant = environment["ALIQUOT_LEASE_ID"], environment.get("ALIQUOT_TENANT", "")
            parts = {
                one[0]: Part(one[0], ordinal, one[1], int(one[2]), int(one[3]), lease_id, tenant)
                for ordinal, one in enumerate(zip(slice_ids, uuids, memory, share, strict=True))
            }
            digest = bytes.fromhex(environment.get("ALIQUOT_SERVING_CREDENTIAL_SHA256", ""))
            epoch = int(environment["ALIQUOT_LEASE_EPOCH"])
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"this process knows no lease that it could serve: {error!r}", hint="an agent starts it, for a lease"
            ) from error
        if len(digest) != sha256().digest_size:
            raise ConfigError(
                "nobody has said how clients of this lease prove themselves",
                hint="its coordinator is older than what serves it: upgrade it, and ask for a new lease",
            )
        return cls(lease_id, epoch, tenant, digest, parts)


def admit(lease: Lease, hello: remote_pb2.RemoteHello, software: str) -> tuple[int, Part]:
    """The version to speak with a client, and the part that it is to use. Raises `Refusal`.

    Who does not have the credential learns nothing about the lease.
    """
    version = choose(hello.version_min, hello.version_max)
    if version is None:
        ours = spoken(VERSION_MIN, VERSION_MAX)
        theirs = spoken(hello.version_min, hello.version_max)
        raise Refusal(
            "VERSION",
            f"the client ({one_line(hello.software, 100) or 'unknown'}) speaks version {theirs} of the protocol, "
            f"the server ({software}) {ours}",
        )
    shown = hello.credential[:_CREDENTIAL_CHARS_MAX]
    if not hmac.compare_digest(sha256(shown.encode()).digest(), lease.credential_sha256):
        raise Refusal(
            "CREDENTIAL", "the credential is not of the lease that is served here, or of an earlier grant of it"
        )
    if (hello.lease_id, hello.lease_epoch, hello.tenant) != (lease.lease_id, lease.lease_epoch, lease.tenant):
        raise Refusal(
            "LEASE",
            f"served here is lease {lease.lease_id}, epoch {lease.lease_epoch}, of {lease.tenant}: not "
            + one_line(f"{hello.lease_id}, epoch {hello.lease_epoch}, of {hello.tenant}", 300),
        )
    part = lease.parts.get(hello.slice_id)
    if part is None:
        raise Refusal("SLICE", f"{one_line(hello.slice_id, 300)} is not served here, but {', '.join(lease.parts)}")
    return version, part
