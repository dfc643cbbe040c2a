"""One round of reconciling, as another process of ours would do it."""

from __future__ import annotations

from dataclasses import replace

from aliquot.kube.controllers.reconciler import Reconciler
from aliquot.kube.core.reconciling import Patience
from aliquot.kube.holding.book import now_ms
from tests.kube.cluster import KubeCluster


async def round_of(cluster: KubeCluster, patience: Patience) -> int:
    """How much there was to do. It sees what the extender's process sees, and knows nothing of its binds."""
    parts = cluster.extender.parts
    return await Reconciler(replace(parts, now_ms=lambda: now_ms() + 1, patience=patience)).once()
