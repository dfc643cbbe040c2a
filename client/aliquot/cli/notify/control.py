"""The call to a program that optimises or reclaims: one finding a device, in the words that such programs expect."""

from __future__ import annotations

import datetime as dt
import json
import urllib.request
from collections.abc import Iterable, Mapping

from aliquot.client import Device, Lease
from aliquot.common.https import open_directly
from aliquot.common.utilisation import percent, score, status_of

TIMEOUT_S = 10.0
Finding = Mapping[str, str | float | None]


def findings(lease: Lease, devices: Iterable[Device], now: dt.datetime) -> list[Finding]:
    """What is posted of a lease: for each device that it uses, whose it is, where, and how little is done."""
    by_uuid = {device.uuid: device for device in devices}
    found: list[Finding] = []
    for part in lease.slices:
        device = by_uuid.get(part.device_uuid)
        telemetry = device.telemetry if device is not None else None
        value = None
        if device is not None and telemetry is not None:
            value = score(
                telemetry.gpu_utilisation_percent,
                telemetry.memory_utilisation_percent,
                percent(telemetry.memory_used_bytes, device.memory_total_bytes),
                percent(telemetry.power_mw, telemetry.power_limit_mw),
            )
        found.append(
            {
                "gpu_id": part.device_uuid,
                "pod": lease.name or lease.lease_id,
                "namespace": lease.tenant,
                "hostname": part.node_name,
                "score": value,
                "status": str(status_of(value)),
                "timestamp": now.isoformat(timespec="seconds"),
                "lease_id": lease.lease_id,
            }
        )
    return found


def post(address: str, finding: Finding, token: str = "") -> None:
    """Tell one finding, with the token to this address alone. Raises `OSError`."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(address, json.dumps(finding).encode(), headers)  # noqa: S310 - checked below
    with open_directly(request, timeout_s=TIMEOUT_S):
        pass
