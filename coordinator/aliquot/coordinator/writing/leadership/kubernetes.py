"""Leadership among several coordinators by a Lease of Kubernetes (`coordination.k8s.io/v1`), for pools that run there.

Who holds the Lease leads; it is taken and renewed by replacing the object at the resource version that was read, which
the API server refuses where another was faster. Nobody's clock is compared with anybody else's: a candidate counts the
Lease as expired when it has seen it unchanged for its whole duration, as Kubernetes' own components do.

The Lease only chooses. What keeps an old leader from writing is the journal's fence, as everywhere: the epoch, which
an annotation carries, is always above the one in the journal.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import urllib3.exceptions
from kubernetes import client, config
from kubernetes.client import ApiException, CoordinationV1Api, V1Lease, V1LeaseSpec, V1ObjectMeta

from aliquot.common.errors import ConfigError
from aliquot.coordinator.errors import JournalUnavailable
from aliquot.coordinator.writing.journal.postgres import PostgresJournal
from aliquot.coordinator.writing.leadership.expiring import DEFAULT_EXPIRY_MS, ExpiringLeadership, Seat

EPOCH = "aliquot.dev/leader-epoch"
ADDRESS = "aliquot.dev/address"
"""Annotations of the Lease."""
_CONFLICT = 409
_NOT_FOUND = 404

_Lease = Any
"""A V1Lease, or None: all of its parts are optional to its types, and none of them is in what the API gives."""


class KubernetesLeadership(ExpiringLeadership):
    """See the module's docstring. `place` is `NAMESPACE/NAME` of the Lease; who runs this must be allowed to get,
    create and update it.

    Raises ConfigError where there is no cluster to talk to.
    """

    def __init__(
        self,
        journal: PostgresJournal,
        place: str,
        *,
        holder: str,
        address: str = "",
        expiry_ms: int = DEFAULT_EXPIRY_MS,
    ) -> None:
        super().__init__(journal, holder=holder, address=address, expiry_ms=expiry_ms)
        self._namespace, slash, self._name = place.partition("/")
        if not (slash and self._namespace and self._name) or "/" in self._name:
            raise ConfigError(f"{place!r} names no Lease", hint="give --leadership kubernetes:NAMESPACE/NAME")
        self.what = f"the Lease {place}"
        self._duration_s = -(-self._expiry_ms // 1000)  # the API takes whole seconds
        self._api = _api()
        self._timeout_s = self._expiry_ms / 1000 / 3
        self._lock = threading.Lock()
        self._seen: _Lease = None
        self._unchanged_since = ("", 0.0)

    def look(self) -> Seat:
        """Who leads. Raises JournalUnavailable."""
        with self._lock:
            self._seen = lease = self._read()
            if lease is None:
                return Seat(0, "", free=True)
            now, version = time.monotonic(), str(lease.metadata.resource_version)
            if self._unchanged_since[0] != version:
                self._unchanged_since = (version, now)
            duration_s = lease.spec.lease_duration_seconds or self._duration_s
            expired = now - self._unchanged_since[1] >= duration_s
            return Seat(_epoch_of(lease), _annotation(lease, ADDRESS), not lease.spec.holder_identity or expired)

    def _take(self, seat: Seat) -> int | None:
        _, fence = self._journal.identity()
        epoch = max(seat.leader_epoch, fence) + 1
        with self._lock, self._translated():
            now = _now()
            old = self._seen
            lease: _Lease = V1Lease(
                metadata=V1ObjectMeta(name=self._name, namespace=self._namespace) if old is None else old.metadata,
                spec=V1LeaseSpec(
                    holder_identity=self._holder,
                    lease_duration_seconds=self._duration_s,
                    acquire_time=now,
                    renew_time=now,
                    lease_transitions=0 if old is None else (old.spec.lease_transitions or 0) + 1,
                ),
            )
            lease.metadata.annotations = {
                **(lease.metadata.annotations or {}),
                EPOCH: str(epoch),
                ADDRESS: self.address,
            }
            return epoch if self._put(lease, create=old is None) else None

    def _renew(self) -> bool:
        with self._lock, self._translated():
            if self._renewed():
                return True
            # Somebody else has written it: perhaps merely a label.
            self._seen = self._read()
            return self._is_ours() and self._renewed()

    def _renewed(self) -> bool:
        lease = self._seen
        if lease is None:
            return False
        lease.spec.renew_time = _now()
        return self._put(lease)

    def _give_up(self) -> None:
        with self._lock, self._translated():
            lease = self._seen
            if lease is not None and self._is_ours():
                lease.spec.holder_identity = ""
                self._put(lease)

    def _close(self) -> None:
        self._api.api_client.close()

    def _is_ours(self) -> bool:
        lease = self._seen
        return lease is not None and lease.spec.holder_identity == self._holder and _epoch_of(lease) == self._epoch

    def _read(self) -> _Lease:
        with self._translated():
            try:
                return self._api.read_namespaced_lease(self._name, self._namespace, _request_timeout=self._timeout_s)
            except ApiException as error:
                if error.status == _NOT_FOUND:
                    return None
                raise

    def _put(self, lease: _Lease, *, create: bool = False) -> bool:
        """Whether it was still as it had been read."""
        try:
            if create:
                put = self._api.create_namespaced_lease(self._namespace, lease, _request_timeout=self._timeout_s)
            else:
                put = self._api.replace_namespaced_lease(
                    self._name, self._namespace, lease, _request_timeout=self._timeout_s
                )
        except ApiException as error:
            if error.status in {_CONFLICT, _NOT_FOUND}:
                return False
            raise
        self._seen = put
        return True

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turns the API's errors into ours."""
        try:
            yield
        except ApiException as error:
            raise JournalUnavailable(
                f"{self.what}: {error.status} {error.reason}",
                hint="a role must allow get, create and update of leases.coordination.k8s.io",
            ) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise JournalUnavailable(
                f"{self.what}: {error}", hint="it goes on by itself when the API answers"
            ) from error


def _api() -> CoordinationV1Api:
    """Of the cluster that we run in, or else of the one that `kubectl` talks to."""
    settings = client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=os.environ.get("KUBECONFIG"), client_configuration=settings
            )
    except config.ConfigException as error:
        raise ConfigError(
            f"no Kubernetes here: {error}", hint="run it in a pod with a service account, or set KUBECONFIG"
        ) from error
    settings.retries = False  # a renewal that is late is worth nothing, and the next one comes soon
    return CoordinationV1Api(client.ApiClient(settings))


def _annotation(lease: _Lease, name: str) -> str:
    return str((lease.metadata.annotations or {}).get(name, ""))


def _epoch_of(lease: _Lease) -> int:
    text = _annotation(lease, EPOCH)
    return int(text) if text.isdecimal() else 0


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
