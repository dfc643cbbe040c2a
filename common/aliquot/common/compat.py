"""`parse_gpu_resource`, for programs written for the resource strings of older platforms.

It uses the parser of `request`, so a string means the same everywhere. Gigabytes are 10⁹ bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from aliquot.common import catalog
from aliquot.common.limits import WHOLE_SHARE_MILLI
from aliquot.common.request import GpuRequest, parse_request


@dataclass(frozen=True, slots=True)
class GPUResource:
    """What an older platform asks for. Its numbers are for display; leases are made from `request`."""

    gpu_num: int | float
    """GPUs in all: an int where they are whole; 0 for no GPU."""
    gpu_type: str | None
    """The model, or the alternatives as written in a request; None for any."""
    resource_name: str
    """The Kubernetes extended resource of the vendor."""
    memory_gb: float | None
    """Per slice, in 10⁹ bytes; None where it follows the share."""
    compute_ratio: float | None
    """Of one GPU per slice, 0.001 to 1; None where it follows the memory."""
    request: GpuRequest | None
    """The exact request; None for no GPU."""


def parse_gpu_resource(text: str | float | None, resource_name: str | None = None) -> GPUResource:
    """Reads `2`, `0.5`, `2(V100)`, `1(nvidia,V100)`, `2(amd)`, `8G,0.5` and whatever else a request may be.

    Empty, None and `0` ask for no GPU. The vendor written, or else that of the model, picks the resource name;
    otherwise it is `resource_name`, by default NVIDIA's. Memory alone counts as `gpu_num` 1 for each slice, because its
    share depends on the device. Raises `RequestSyntaxError`.
    """
    written = "" if text is None else str(text).strip()
    fallback = resource_name or catalog.DEFAULT_RESOURCE_NAME
    if written in ("", "0", "0.0"):
        return GPUResource(0, None, fallback, None, None, None)
    request = parse_request(written)
    names = [name for names in request.models for name in names]
    vendors = {request.vendor} if request.vendor else {*request.vendors, *map(catalog.vendor_of, names)}
    vendor = vendors.pop() if len(vendors) == 1 else None
    share = None if request.share_milli is None else Fraction(request.share_milli, WHOLE_SHARE_MILLI)
    total = request.count * (share if share is not None else 1)
    return GPUResource(
        gpu_num=int(total) if total == int(total) else float(total),
        gpu_type=">".join("|".join(level) for level in request.models) or None,
        resource_name=catalog.RESOURCE_NAMES[vendor] if vendor else fallback,
        memory_gb=None if request.memory_bytes is None else request.memory_bytes / 10**9,
        compute_ratio=None if share is None else float(share),
        request=request,
    )
