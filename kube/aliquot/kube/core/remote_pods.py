"""Pods that use GPUs of other machines: what they ask for, and the ticket that is put into a Secret for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aliquot.common.request import format_request, parse_request
from aliquot.kube.core.shapes import RawPod

REMOTE: Final = "aliquot.dev/remote"
"""The annotation: what is asked for, in the request grammar."""
SECRET: Final = "aliquot.dev/remote-secret"  # noqa: S105 - the label with a Secret's name
"""The label: which Secret the pod mounts."""
SECRET_TYPE: Final = "aliquot.dev/ticket"  # noqa: S105 - of Secrets
"""Of our Secrets. The type of one can't be changed, so that nobody else's is ever written over."""
FILE: Final = "ticket.json"
OWNER: Final = "remote"
_GANG: Final = "remote-"
_ENDED: Final = frozenset({"Succeeded", "Failed"})


class RemotePod(msgspec.Struct, frozen=True):
    """What is kept of such a pod."""

    namespace: str
    name: str
    uid: str
    asked: str
    secret: str
    labels: dict[str, str]
    over: bool


def flatten(pod: RawPod) -> RemotePod | None:
    """The record of a pod; None: it asks for nothing remote."""
    meta = pod.metadata
    asked, secret = (meta.annotations or {}).get(REMOTE, ""), (meta.labels or {}).get(SECRET, "")
    if not asked or not secret:
        return None
    over = pod.status.phase in _ENDED or meta.deletion_timestamp is not None
    return RemotePod(meta.namespace, meta.name, meta.uid, asked, secret, meta.labels or {}, over)


def request_text(pod: RemotePod) -> str:
    """What it asks for. Raises RequestSyntaxError."""
    return format_request(parse_request(pod.asked))


def gang_of(uid: str) -> str:
    """What the lease of such a pod is labelled with."""
    return f"{_GANG}{uid}"


def pod_uid(gang: str) -> str:
    """The other way round; empty for a lease of another kind."""
    return gang.removeprefix(_GANG) if gang.startswith(_GANG) else ""


def secret_document(pod: RemotePod, data: str) -> Mapping[str, Any]:
    """The Secret, which goes with its pod. `data` is in base64."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": pod.secret, "namespace": pod.namespace, "ownerReferences": [owner]},
        "type": SECRET_TYPE,
        "data": {FILE: data},
    }
