"""What the node's part stands on: handed as one to whatever works with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from aliquot.kube.node.agent import Agent
from aliquot.kube.node.api_server import ApiServer
from aliquot.kube.node.cgroups import PodCgroups
from aliquot.kube.node.injection import Injection
from aliquot.kube.node.pod_resources import PodResources
from aliquot.kube.node.records import Records
from aliquot.kube.node.reporting import Reporting


@dataclass(frozen=True, slots=True)
class NodeParts:
    """One node's."""

    node: str
    """As the cluster calls it."""
    pool_names: tuple[str, ...]
    """What the pool calls this node; who places pods knows it by the cluster's name alone."""
    agent: Agent
    resources: PodResources
    cluster: ApiServer
    cgroups: PodCgroups
    injection: Injection
    records: Records
    reporting: Reporting
    monotonic_s: Callable[[], float] = time.monotonic
