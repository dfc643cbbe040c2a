"""The call to a program that optimises or reclaims: one finding a device, in the words that such programs expect."""

from __future__ import annotations

import datetime as dt
import json
import urllib.request
from collections.abc import Mapping

from aliquot.client import Lease
from aliquot.common.https import open_directly
from aliquot.common.utilisation import Utilisation

TIMEOUT_S = 10.0
Finding = Mapping[str, str | float | None]


def findings(lease: Lease, now: dt.datetime) -> list[Finding]:
    """What is posted of a lease, as `get` tells it: for each device that it uses, whose it is, where, and how little is
    done with it.
    """
    use = lease.use
    value = use.score_permille / 10 if use is not None and use.score_permille is not None else None
    return [
        {
            "gpu_id": part.device_uuid,
            "pod": lease.name or lease.lease_id,
            "namespace": lease.tenant,
            "hostname": part.node_name,
            "score": value,
            "status": use.utilisation if value is not None and use is not None else Utilisation.UNKNOWN,
            "timestamp": now.isoformat(timespec="seconds"),
            "lease_id": lease.lease_id,
        }
        for part in lease.slices
    ]


def post(address: str, finding: Finding, token: str = "") -> None:
    """Tell one finding, with the token to this address alone. Raises `OSError`."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(address, json.dumps(finding).encode(), headers)  # noqa: S310 - checked below
    with open_directly(request, timeout_s=TIMEOUT_S):
        pass
