"""The one write that makes a pod run: the Binding, which carries the assignment. Its answer may be lost."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from typing import Final

from aliquot.kube.api import objects
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeConflict, KubeError, KubeNotFound, KubeRefused, KubeUnavailable
from aliquot.kube.core.names import LEASE_ID

BIND_S: Final = 20.0
"""How long is tried. Well below the patience of reconciling, which clears away what is not bound."""
_PAUSE_S: Final = 0.2


class Outcome(enum.Enum):
    """What became of a Binding."""

    BOUND = "bound"
    REFUSED = "refused"
    """It is certain that this pod is not bound with this assignment: undo."""
    UNKNOWN = "unknown"
    """The API server did not say. What was granted stays until reconciling has looked."""


async def bind(
    client: KubeClient, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
) -> tuple[Outcome, str]:
    """Bind, and find out what became of it; with the reason where it is not bound."""
    deadline = asyncio.get_running_loop().time() + BIND_S
    while True:
        try:
            await objects.bind(client, namespace, name, uid, node, annotations)
            return Outcome.BOUND, ""
        except (KubeConflict, KubeNotFound) as error:
            why = error.message
            settled = True
        except KubeRefused as error:
            return Outcome.REFUSED, error.message
        except KubeUnavailable as error:
            why = error.message
            settled = False
        # Perhaps it was carried out and the answer lost, now or at an earlier try.
        try:
            pod = await objects.get_pod(client, namespace, name)
        except KubeError as error:
            why = error.message
        else:
            if pod is None or pod.metadata.uid != uid:
                return Outcome.REFUSED, "the pod is gone"
            if pod.spec.node_name:
                ours = pod.spec.node_name == node and _lease(pod.metadata.annotations) == _lease(annotations)
                return (Outcome.BOUND, "") if ours else (Outcome.REFUSED, f"it is bound to {pod.spec.node_name}")
            if settled:
                return Outcome.REFUSED, why
        if asyncio.get_running_loop().time() + _PAUSE_S >= deadline:
            return Outcome.UNKNOWN, why
        await asyncio.sleep(_PAUSE_S)


def _lease(annotations: Mapping[str, str] | None) -> str:
    return (annotations or {}).get(LEASE_ID, "")
