"""One controller at a time, by a Lease of Kubernetes.

The Lease is taken and renewed by replacing it at the resource version that was read. Nobody's clock is compared with
anybody else's: a candidate counts the Lease as expired when it has seen it unchanged for its whole duration, on its own
monotonic clock. The holder counts from before it asked, and stops by its own clock when that time is over, whatever it
was waiting for: with the API server frozen the leader ends no later than anybody may take over.
`leaseTransitions` rises with every change of holder: the fencing epoch.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeConflict, KubeError, KubeNotFound
from aliquot.kube.api.resources import LEASES

log = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """The Lease is, or may be, another's by now."""


class Election:
    """A candidate for a Lease. Not for several tasks at once.

    Args:
        client: the API server.
        namespace: of the Lease.
        name: its name.
        holder: names this process among its kind.
        duration_s: how long after its last renewal the Lease is free.
    """

    def __init__(self, client: KubeClient, namespace: str, name: str, holder: str, *, duration_s: int = 15) -> None:
        self.holder = holder
        self.epoch = 0
        """`leaseTransitions` of our own term."""
        self.duration_s = duration_s
        self._client = client
        self._namespace = namespace
        self._name = name
        self._timeout_s = duration_s / 3
        self._pause_s = duration_s / 6
        self._seen = ("", 0.0)
        self._deadline = 0.0

    @property
    def leads(self) -> bool:
        """Whether nobody else can lead yet."""
        return self._now() < self._deadline

    async def run(self, lead: Callable[[int], Awaitable[None]]) -> None:
        """Wait for the Lease, then lead: `lead` is given the epoch and is cancelled when the Lease is lost.

        Raises LeadershipLost then: end the process, whatever it still remembers. Returns when `lead` returns.
        """
        while not await self.try_take():  # noqa: ASYNC110 - the API server has no event for it
            await asyncio.sleep(self._pause_s)
        work = asyncio.ensure_future(lead(self.epoch))
        keeping = asyncio.create_task(self._keep())
        try:
            await asyncio.wait({work, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return
            keeping.result()
        finally:
            for task in (work, keeping):
                task.cancel()
            await asyncio.gather(work, keeping, return_exceptions=True)
            if self.leads:
                await self.give_up()

    async def try_take(self) -> bool:
        """Take the Lease if it is free. An API server that does not answer is a no."""
        asked = self._now()
        try:
            lease = await self._read()
            if lease is not None and not self._free(lease):
                return False
            now, before = _micro_time(), (lease or {}).get("spec") or {}
            epoch = int(before.get("leaseTransitions") or 0) + 1
            await self._write(lease, holderIdentity=self.holder, acquireTime=now, renewTime=now, leaseTransitions=epoch)
        except KubeConflict:
            return False
        except KubeError as error:
            log.warning("the Lease %s/%s can't be taken: %s", self._namespace, self._name, error.explain())
            return False
        self.epoch, self._deadline = epoch, asked + self.duration_s
        return True

    async def give_up(self) -> None:
        """Let it be free at once, so that the next need not wait for its expiry."""
        self._deadline = 0.0
        try:
            lease = await self._read()
            if lease is not None and lease["spec"].get("holderIdentity") == self.holder:
                await self._write(lease, holderIdentity="")
        except KubeError as error:
            log.warning("the Lease %s/%s was not given up: %s", self._namespace, self._name, error.message)

    async def _keep(self) -> None:
        try:
            while True:
                async with asyncio.timeout_at(self._deadline):
                    await asyncio.sleep(self._pause_s)
                    await self._renew()
        except TimeoutError as error:
            raise LeadershipLost(f"the Lease could not be renewed for {self.duration_s} s") from error

    async def _renew(self) -> None:
        asked = self._now()
        try:
            # Read first: somebody may have written merely a label.
            lease = await self._read()
            if lease is None or lease["spec"].get("holderIdentity") != self.holder:
                self._deadline = 0.0
                raise LeadershipLost("another has taken the Lease, or it is gone")
            await self._write(lease, renewTime=_micro_time())
            self._deadline = asked + self.duration_s
        except KubeError as error:
            log.warning("the Lease was not renewed, and is tried again: %s", error.message)

    def _free(self, lease: dict[str, Any]) -> bool:
        spec, version = lease.get("spec", {}), lease["metadata"]["resourceVersion"]
        now = self._now()
        duration_s = float(spec.get("leaseDurationSeconds") or self.duration_s)
        if self._seen[0] != version:
            self._seen = (version, now)
        return not spec.get("holderIdentity") or now - self._seen[1] >= duration_s

    async def _read(self) -> dict[str, Any] | None:
        try:
            path = LEASES.path(self._namespace, self._name)
            found: dict[str, Any] = msgspec.json.decode(await self._client.call("GET", path, timeout_s=self._timeout_s))
            return found
        except KubeNotFound:
            return None

    async def _write(self, lease: dict[str, Any] | None, **changed: object) -> None:
        """Replace it at its version; None: make it. Raises KubeError."""
        spec = {**((lease or {}).get("spec") or {}), "leaseDurationSeconds": self.duration_s, **changed}
        meta = {"name": self._name, "namespace": self._namespace} if lease is None else lease["metadata"]
        document = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        method, name = ("POST", "") if lease is None else ("PUT", self._name)
        path = LEASES.path(self._namespace, name)
        await self._client.call(method, path, document=document, timeout_s=self._timeout_s)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _micro_time() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
