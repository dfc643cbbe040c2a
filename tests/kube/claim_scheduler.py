"""What kube-scheduler does with claims, as far as ours need it: shared devices with capacities, and taints."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from aliquot.common.quantity import parse_bytes
from tests.kube.fake_api.pods import bind
from tests.kube.fake_api.server import FakeApi
from tests.kube.fake_api.store import Object

VERSION = "resource.k8s.io/v1"


class ClaimScheduler:
    """Allocates the claims of pending pods of the stock scheduler, and binds them."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self._claims = api.store.kind(VERSION, "resourceclaims")
        self._slices = api.store.kind(VERSION, "resourceslices")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for key, pod in list(self.api.pods.items.items()):
                spec = pod["spec"]
                if spec.get("resourceClaims") and not spec.get("nodeName"):
                    self.place(key, pod)
            self.deallocate()
            await asyncio.sleep(0.02)

    def deallocate(self) -> None:
        """As the controller of claims does with those that no pod uses any more."""
        there = {pod["metadata"]["uid"] for pod in self.api.pods.items.values()}
        for key, claim in list(self._claims.items.items()):
            status = claim.get("status") or {}
            if status.get("reservedFor") and all(user["uid"] not in there for user in status["reservedFor"]):
                self._write(key, claim, {})

    def place(self, key: tuple[str, str], pod: Object) -> None:
        """One pod with one claim."""
        name = (key[0], pod["spec"]["resourceClaims"][0]["resourceClaimName"])
        claim = self._claims.items.get(name)
        if claim is None:
            return
        request = claim["spec"]["devices"]["requests"][0]
        asked = ((request["exactly"].get("capacity") or {}).get("requests")) or {}
        used = self._used()
        for item in self._slices.items.values():
            spec = item["spec"]
            for device in spec["devices"]:
                consumed = {
                    kind: str(asked.get(kind, has["requestPolicy"]["default"]))
                    for kind, has in device["capacity"].items()
                    if "requestPolicy" in has
                }
                if device.get("taints") or not self._fits(device, consumed, used[spec["pool"]["name"], device["name"]]):
                    continue
                result = {
                    "request": request["name"],
                    "driver": spec["driver"],
                    "pool": spec["pool"]["name"],
                    "device": device["name"],
                    "shareID": claim["metadata"]["uid"],
                    "consumedCapacity": consumed,
                }
                meta = pod["metadata"]
                user = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
                status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
                self._write(name, claim, status)
                bind(self.api.store, self.api.pods, key, {"target": {"name": spec["nodeName"]}})
                return

    def _fits(self, device: Any, consumed: dict[str, str], used: dict[str, int]) -> bool:
        return all(
            used[kind] + parse_bytes(amount) <= parse_bytes(device["capacity"][kind]["value"])
            for kind, amount in consumed.items()
        )

    def _used(self) -> dict[tuple[str, str], dict[str, int]]:
        found: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for claim in self._claims.items.values():
            allocation = (claim.get("status") or {}).get("allocation") or {}
            for result in (allocation.get("devices") or {}).get("results") or ():
                for kind, amount in result["consumedCapacity"].items():
                    found[result["pool"], result["device"]][kind] += parse_bytes(amount)
        return found

    def _write(self, key: tuple[str, str], claim: Object, status: Any) -> None:
        item = {**claim, "metadata": {**claim["metadata"]}, "status": status}
        self.api.store.write(self._claims, key, item, "MODIFIED")
