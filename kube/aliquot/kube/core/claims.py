"""ResourceClaims that kube-scheduler has allocated from our devices: what lease each is to have, and what to do.

kube-scheduler decides by the ResourceSlices that it sees; the pool decides again, as with every launcher. So a claim's
allocation is a wish, until a lease mirrors it; the claim's annotations say which, or why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from aliquot.common.errors import AliquotError, QuantityError
from aliquot.common.limits import MAX_SLICES_PER_MEMBER
from aliquot.common.quantity import parse_bytes
from aliquot.common.request import GpuRequest, format_request
from aliquot.kube.core import names
from aliquot.kube.core.leases import KubeLease, assignment_of
from aliquot.kube.core.shapes import RawMeta

DRIVER: Final = "gpu.aliquot.dev"
"""Of ResourceSlices and DeviceClasses."""
PERCENT: Final = "percent"
MEMORY: Final = "memory"
"""Names of the capacities of our devices."""
UUID: Final = "uuid"
"""The attribute that tells which device one is."""
OWNER: Final = "claim"
REFUSED: Final = "aliquot.dev/refused"
"""The annotation of a claim: why the pool has no lease for what was allocated."""
_GANG: Final = "claim-"
_WHOLE_PERCENT: Final = 100


class ClaimRefused(AliquotError):
    """What was allocated to a claim can't be a lease."""


class RawResult(msgspec.Struct, rename="camel", gc=False):
    """One device of an allocation."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str = msgspec.field(name="shareID", default="")
    consumed_capacity: dict[str, str | int] | None = None


class RawDevices(msgspec.Struct, gc=False):
    """`allocation.devices`."""

    results: list[RawResult] | None = None


class RawAllocation(msgspec.Struct, gc=False):
    """`status.allocation`."""

    devices: RawDevices = msgspec.field(default_factory=RawDevices)


class RawConsumer(msgspec.Struct, gc=False):
    """Who may use a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class RawClaimStatus(msgspec.Struct, rename="camel", gc=False):
    """`status`."""

    allocation: RawAllocation | None = None
    reserved_for: list[RawConsumer] | None = None


class RawClaim(msgspec.Struct, gc=False):
    """A ResourceClaim."""

    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    status: RawClaimStatus = msgspec.field(default_factory=RawClaimStatus)

    @property
    def key(self) -> str:
        """`NAMESPACE/NAME`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def pods(self) -> list[RawConsumer]:
        """The pods that may use it."""
        return [each for each in self.status.reserved_for or () if each.resource == "pods"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The lease that mirrors an allocation."""

    gpu: str
    """In the request grammar."""
    node: str
    devices: tuple[str, ...]
    """Names, as ResourceSlices have them."""


def gang_of(uid: str) -> str:
    """What the lease of a claim is labelled with."""
    return f"{_GANG}{uid}"


def claim_uid(gang: str) -> str:
    """The other way round; empty for a lease of another kind."""
    return gang.removeprefix(_GANG) if gang.startswith(_GANG) else ""


def results_of(claim: RawClaim) -> list[RawResult]:
    """Our devices in a claim's allocation."""
    allocation = claim.status.allocation
    return [each for each in (allocation.devices.results or () if allocation else ()) if each.driver == DRIVER]


def asked_for(spec: Mapping[str, Any]) -> str:
    """What a claim's spec asks for of our devices, in the request grammar; empty: nothing. Raises ClaimRefused."""
    results: list[RawResult] = []
    for request in (spec.get("devices") or {}).get("requests") or ():
        exactly: Mapping[str, Any] = request.get("exactly") or next(iter(request.get("firstAvailable") or ()), {})
        if exactly.get("deviceClassName") == DRIVER:
            consumed = (exactly.get("capacity") or {}).get("requests")
            results += [
                RawResult(driver=DRIVER, consumed_capacity=consumed) for _ in range(int(exactly.get("count", 1)))
            ]
    for number, result in enumerate(results):
        result.device = f"{number}"
    devices = RawAllocation(RawDevices(results))
    found = wanted(RawClaim(status=RawClaimStatus(allocation=devices)))
    return found.gpu if found is not None else ""


def wanted(claim: RawClaim) -> Wanted | None:
    """What a claim's allocation comes to; None: nothing of ours. Raises ClaimRefused."""
    results = results_of(claim)
    if not results:
        return None
    parts = [_part(each) for each in results]
    if len({each.pool for each in results}) > 1 or len(set(parts)) > 1:
        raise ClaimRefused("several devices of a claim are equal parts of one node's", hint="use a claim for each kind")
    if len({each.device for each in results}) < len(results):
        raise ClaimRefused("a claim has several parts of one device", hint="ask for one part of their size together")
    if len(results) > MAX_SLICES_PER_MEMBER:
        raise ClaimRefused(f"{len(results)} devices; at most {MAX_SLICES_PER_MEMBER}")
    percent, memory = parts[0]
    whole = percent == _WHOLE_PERCENT
    request = GpuRequest(
        count=len(results), share_milli=percent * 10, memory_bytes=None if whole or not memory else memory
    )
    return Wanted(format_request(request), results[0].pool, tuple(each.device for each in results))


def _part(result: RawResult) -> tuple[int, int]:
    """Percent and bytes of one device. A device that is allocated as a whole has no consumed capacity."""
    consumed = result.consumed_capacity
    if consumed is None:
        return _WHOLE_PERCENT, 0
    try:
        percent = int(consumed.get(PERCENT, _WHOLE_PERCENT))
        memory = parse_bytes(str(consumed.get(MEMORY, 0)))
    except (ValueError, QuantityError) as error:
        raise ClaimRefused(f"device {result.device}: its capacity can't be read: {error}") from error
    if not 0 < percent <= _WHOLE_PERCENT:
        raise ClaimRefused(f"device {result.device}: {percent} percent of one device")
    return percent, memory


def mirrors(lease: KubeLease, node: str, uuids: tuple[str, ...]) -> bool:
    """Whether a lease is what was allocated."""
    return {(part.node, part.device) for part in lease.parts if not part.gone} == {(node, uuid) for uuid in uuids}


def annotations_for(lease: KubeLease | None, why: str) -> dict[str, str | None]:
    """What a claim is told: its lease, or why it has none. None takes one away."""
    if lease is not None:
        return {**assignment_of(lease, 0), REFUSED: None}
    return {names.LEASE_ID: None, names.ASSIGNMENT: None, REFUSED: why[:512]}


def differ(has: Mapping[str, str] | None, wants: Mapping[str, str | None]) -> bool:
    """Whether a claim has to be told."""
    return any((has or {}).get(name) != value for name, value in wants.items())
